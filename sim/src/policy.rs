//! How many nodes to draft in the coming round, from what an engine can know then: draft probabilities, recent acceptance,
//! context, prices. Plain decoding (0) is always allowed. A policy's memory is one prompt's. The oracle alone sees the outcome.

use crate::{Price, SimError, error::probability};
use specdec::{Budget, BudgetTable, TableMemory};

/// A rule for the budget of each round.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Always the same.
    Fixed(Budget),
    /// Tiers over the smoothed count of accepted drafts per round (bonus excluded): the last tier whose threshold is reached.
    EmaThreshold {
        /// `(accepted drafts per round, budget)`, thresholds rising; below the first the budget is 0.
        tiers: Vec<(f64, Budget)>,
        /// Memory of acceptance.
        memory: Memory,
    },
    /// Drafts every node whose path probability reaches the threshold (llama.cpp's p_min over paths), up to a cap.
    ConfidenceStop {
        /// Least path probability.
        threshold: f64,
        /// Cap.
        most: Budget,
    },
    /// Upper confidence bound over a few budgets; the reward is tokens per second. Deterministic.
    Bandit {
        /// Budgets to choose from.
        arms: Vec<Budget>,
        /// Weight of the unknown, as a share of the best rate seen.
        exploration: f64,
    },
    /// A plain table over context length and accepted drafts per round, as the engine reads it from a file: no learning lag.
    Table(BudgetTable),
    /// The budget with the largest `expected tokens - rate * seconds` over all budgets, where `rate` is what the prompt has
    /// reached so far. Looks past flat steps because it looks at every budget.
    CostAware,
    /// Adds nodes while the next pays (marginal tokens over marginal seconds above the average so far): CaDDTree's stop
    /// (arXiv 2606.01813). Optimal for convex costs only: on a staircase it halts before a flat step.
    MarginalStop,
    /// Knows what the target will accept. Nobody can beat it; it bounds what adapting could gain.
    Oracle,
}

/// Smoothed acceptance, and how to keep learning while drafting is off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Weight of the newest round, in (0, 1].
    pub weight: f64,
    /// Accepted drafts per round assumed before the first.
    pub start: f64,
    /// While off, every so many rounds the smallest budget is tried; 0 never tries again.
    pub probe_every: usize,
}

impl Policy {
    /// Checks thresholds and sizes. Error: the first that cannot work.
    pub fn checked(self) -> Result<Self, SimError> {
        let bad = |reason: &str| SimError::Spec { what: "policy", text: format!("{self:?}"), reason: reason.into() };
        let weight_fine = |m: &Memory| m.weight > 0.0 && m.weight <= 1.0 && m.start >= 0.0;
        match &self {
            Self::EmaThreshold { tiers, memory } => {
                if tiers.windows(2).any(|w| w[0].0 >= w[1].0) {
                    return Err(bad("thresholds must rise"));
                }
                if !weight_fine(memory) {
                    return Err(bad("the weight of the newest round must be above 0 and at most 1"));
                }
            }
            Self::ConfidenceStop { threshold, .. } => {
                probability("confidence threshold", *threshold)?;
            }
            Self::Bandit { arms, exploration } => {
                if arms.is_empty() || !exploration.is_finite() || *exploration < 0.0 {
                    return Err(bad("at least one arm and an exploration of at least 0 are needed"));
                }
            }
            Self::Fixed(_) | Self::Table(_) | Self::CostAware | Self::MarginalStop | Self::Oracle => {}
        }
        Ok(self)
    }

    /// True when the rule reads path probabilities.
    pub(crate) fn reads_confidence(&self) -> bool {
        matches!(self, Self::ConfidenceStop { .. } | Self::CostAware | Self::MarginalStop)
    }
}

/// What is known before a round.
pub(crate) struct View<'a> {
    /// Draft path probability per row, root first; empty unless the policy reads it.
    pub seen: &'a [f64],
    /// Price by budget; its last index is the largest budget.
    pub prices: &'a [Price],
    /// Tokens before the root.
    pub context: usize,
    /// Rows that the target will accept in the largest tree. For the oracle only.
    pub outcome: &'a [usize],
}

/// A policy and its memory of one prompt.
pub(crate) struct Decider<'a> {
    policy: &'a Policy,
    table: Option<TableMemory<'a>>,
    smoothed: f64,
    rounds_off: usize,
    tokens: f64,
    seconds: f64,
    /// Oracle: tokens per second that a second of drafting must beat.
    rate: f64,
    /// Rounds, tokens, seconds per arm.
    arms: Vec<(f64, f64, f64)>,
}

impl<'a> Decider<'a> {
    pub(crate) fn new(policy: &'a Policy, oracle_rate: f64) -> Self {
        let (smoothed, arms) = match policy {
            Policy::EmaThreshold { memory, .. } => (memory.start, 0),
            Policy::Bandit { arms, .. } => (0.0, arms.len()),
            _ => (0.0, 0),
        };
        let arms = vec![(0.0, 0.0, 0.0); arms];
        let table = match policy {
            Policy::Table(table) => Some(TableMemory::new(table)),
            _ => None,
        };
        Self { policy, table, smoothed, rounds_off: 0, tokens: 0.0, seconds: 0.0, rate: oracle_rate, arms }
    }

    /// Nodes to draft, 0 or 3 to 32, at most the largest price.
    pub(crate) fn decide(&self, view: &View) -> usize {
        let most = view.prices.len() - 1;
        let nodes = match self.policy {
            Policy::Fixed(budget) => budget.nodes(),
            Policy::EmaThreshold { tiers, memory } => {
                let tier = tiers.iter().rev().find(|t| self.smoothed >= t.0).map_or(0, |t| t.1.nodes());
                self.or_probe(tier, memory)
            }
            Policy::Table(_) => self.table.as_ref().map_or(0, |t| t.choose(view.context).nodes()),
            Policy::ConfidenceStop { threshold, most } => {
                let sure = view.seen[1..].iter().filter(|&&p| p >= *threshold).count().min(most.nodes());
                if sure == 0 { 0 } else { sure.max(Budget::MIN) }
            }
            Policy::Bandit { arms, exploration } => arms[self.best_arm(*exploration)].nodes(),
            Policy::CostAware => {
                let tau = prefix_sums(view.seen);
                let rate = self
                    .reached()
                    .unwrap_or_else(|| budgets(most).map(|n| tau(n) / view.prices[n].seconds(view.context)).fold(0.0, f64::max));
                best(budgets(most), |n| tau(n) - rate * view.prices[n].seconds(view.context))
            }
            Policy::MarginalStop => {
                let (tau, seconds) = (prefix_sums(view.seen), |n: usize| view.prices[n].seconds(view.context));
                let mut at = 0;
                for next in budgets(most).skip(1) {
                    if tau(next) / seconds(next) <= tau(at) / seconds(at) {
                        break;
                    }
                    at = next;
                }
                at
            }
            Policy::Oracle => best(budgets(most), |n| {
                let accepted = view.outcome.iter().take_while(|&&row| row <= n).count() as f64;
                accepted - self.rate * view.prices[n].seconds(view.context)
            }),
        };
        nodes.min(most)
    }

    /// Learns from a finished round. `accepted` excludes the bonus token.
    pub(crate) fn observe(&mut self, nodes: usize, accepted: f64, seconds: f64) {
        self.tokens += accepted + 1.0;
        self.seconds += seconds;
        self.rounds_off = if nodes == 0 { self.rounds_off + 1 } else { 0 };
        match self.policy {
            Policy::Table(_) => {
                if let (Some(table), Ok(budget)) = (&mut self.table, Budget::new(nodes)) {
                    table.observe(budget, accepted);
                }
            }
            Policy::EmaThreshold { memory, .. } if nodes > 0 => {
                self.smoothed += memory.weight * (accepted - self.smoothed);
            }
            Policy::Bandit { arms, .. } => {
                if let Some(i) = arms.iter().position(|a| a.nodes() == nodes) {
                    let (rounds, tokens, spent) = self.arms[i];
                    self.arms[i] = (rounds + 1.0, tokens + accepted + 1.0, spent + seconds);
                }
            }
            _ => {}
        }
    }

    fn or_probe(&self, nodes: usize, memory: &Memory) -> usize {
        let due = memory.probe_every > 0 && self.rounds_off >= memory.probe_every;
        if nodes == 0 && due { Budget::MIN } else { nodes }
    }

    fn reached(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.tokens / self.seconds)
    }

    fn best_arm(&self, exploration: f64) -> usize {
        if let Some(untried) = self.arms.iter().position(|a| a.0 == 0.0) {
            return untried;
        }
        let rate = |a: &(f64, f64, f64)| a.1 / a.2;
        let top = self.arms.iter().map(rate).fold(0.0, f64::max);
        let rounds: f64 = self.arms.iter().map(|a| a.0).sum();
        let score = |i: usize| rate(&self.arms[i]) + exploration * top * (rounds.ln() / self.arms[i].0).sqrt();
        best(0..self.arms.len(), score)
    }
}

/// 0 and 3..=most.
fn budgets(most: usize) -> impl Iterator<Item = usize> {
    Budget::all().map(Budget::nodes).take_while(move |&n| n <= most)
}

/// The smallest candidate with the largest score.
fn best(candidates: impl Iterator<Item = usize>, score: impl Fn(usize) -> f64) -> usize {
    candidates.fold((0, f64::NEG_INFINITY), |top, n| if score(n) > top.1 { (n, score(n)) } else { top }).0
}

/// `tau(n)` of the first `n` nodes, the bonus token included; trees smaller than `n` stay as they are.
fn prefix_sums(seen: &[f64]) -> impl Fn(usize) -> f64 {
    let mut sum = 0.0;
    let sums: Vec<f64> = seen
        .iter()
        .map(|p| {
            sum += p;
            sum
        })
        .collect();
    move |n| sums[n.min(sums.len() - 1)]
}
