//! Plays rounds of one configuration: acceptance from a law or a trace, budgets from a policy, seconds from a cost model.
//! Prompts are independent and have their own streams, so threads and shards change nothing. Chooses nothing itself.

use crate::{
    AcceptanceModel, CostModel, Interval, Policy, Price, Replay, ShapeKind, SimError,
    policy::{Decider, View},
    randomness::stream,
    sampler::{Sampler, Walk},
    statistics::{Resamples, middle},
};
use serde::{Deserialize, Serialize};
use specdec::Budget;
use std::num::NonZeroUsize;

/// Where acceptance comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A law, and trees grown for it.
    Model {
        /// Law.
        model: &'a AcceptanceModel,
        /// Family of trees. Policies other than a fixed budget use prefixes of the largest tree.
        kind: &'a ShapeKind,
        /// Deepest draft.
        max_depth: usize,
    },
    /// Recorded rounds. A dense trace is walked, another is taken root by root with expected tokens.
    Trace {
        /// Prepared trace.
        replay: &'a Replay,
        /// Sequential steps of its drafter.
        steps: DrafterSteps,
    },
}

/// Sequential drafter steps behind a recorded tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrafterSteps {
    /// One pass fills the tree: DFlash, n-gram.
    #[default]
    Block,
    /// Every node is a step: MTP.
    PerNode,
    /// The tree grows in batches of this many nodes: Weaver, `ceil(budget / batch)` (arXiv 2607.06763).
    Batches(NonZeroUsize),
}

impl DrafterSteps {
    /// Steps for a tree of `nodes`.
    pub(crate) fn of(self, nodes: usize) -> usize {
        match self {
            Self::Block => 0,
            Self::PerNode => nodes,
            Self::Batches(batch) => nodes.div_ceil(batch.get()),
        }
    }
}

/// How much to play.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// Prompts (a trace brings its own).
    pub prompts: usize,
    /// Rounds of each prompt (a trace brings its own).
    pub rounds_per_prompt: usize,
    /// Tokens in the context before the first root (a trace brings its own).
    pub context: usize,
    /// Seed.
    pub seed: u64,
    /// Number of the repetition: its own streams.
    pub repetition: u32,
    /// Worker threads; results do not depend on it.
    pub threads: NonZeroUsize,
}

/// Sums of one prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PromptSums {
    /// Target passes.
    pub rounds: f64,
    /// Emitted tokens, one bonus token per round included.
    pub tokens: f64,
    /// Drafted nodes.
    pub drafted: f64,
    /// Seconds.
    pub seconds: f64,
    /// Changes of budget.
    pub switches: f64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Tokens per target pass, bonus token included (specdec's tau).
    pub tau: f64,
    /// 95 %, clustered by prompt; absent with one prompt.
    pub tau_ci: Option<Interval>,
    /// Tokens per second.
    pub tokens_per_s: f64,
    /// 95 %, clustered by prompt; absent with one prompt.
    pub tokens_per_s_ci: Option<Interval>,
    /// Accepted drafts per target pass, bonus token excluded: tau - 1.
    pub accepted_per_pass: f64,
    /// Drafted nodes per target pass.
    pub drafted_per_pass: f64,
    /// Target passes.
    pub rounds: f64,
    /// Changes of budget.
    pub switches: f64,
    /// Sums by prompt, in order.
    pub by_prompt: Vec<PromptSums>,
}

/// Plays one configuration.
///
/// Errors: V(n) not measured far enough, no prompt or round to play.
pub fn simulate(source: Source, cost: &CostModel, policy: &Policy, run: &Run) -> Result<Outcome, SimError> {
    let by_prompt = play(source, cost, policy, run)?;
    Ok(Outcome::of(by_prompt, &|prompts| Resamples::new(prompts, run.seed)))
}

/// Sums by prompt, without intervals.
pub(crate) fn play(source: Source, cost: &CostModel, policy: &Policy, run: &Run) -> Result<Vec<PromptSums>, SimError> {
    let menu = Menu::new(source, cost, policy)?;
    if *policy != Policy::Oracle {
        return menu.play(policy, 0.0, run);
    }
    // The oracle maximises a ratio of sums: repeat with the rate it reached until that is a fixed point (Dinkelbach 1967).
    let mut rate = 0.0;
    for _ in 0..20 {
        let sums = menu.play(policy, rate, run)?;
        let reached = sums.iter().map(|p| p.tokens).sum::<f64>() / sums.iter().map(|p| p.seconds).sum::<f64>();
        if (reached - rate).abs() <= 1e-9 * reached {
            return Ok(sums);
        }
        rate = reached;
    }
    menu.play(policy, rate, run)
}

impl Outcome {
    fn of(by_prompt: Vec<PromptSums>, resamples: &dyn Fn(usize) -> Resamples) -> Self {
        let total = |f: fn(&PromptSums) -> f64| by_prompt.iter().map(f).sum::<f64>();
        let (rounds, tokens, seconds) = (total(|p| p.rounds), total(|p| p.tokens), total(|p| p.seconds));
        let resamples = resamples(by_prompt.len());
        let interval = |den: fn(&PromptSums) -> f64| {
            resamples.ratios(&by_prompt.iter().map(|p| (p.tokens, den(p))).collect::<Vec<_>>()).map(middle)
        };
        Self {
            tau: tokens / rounds,
            tau_ci: interval(|p| p.rounds),
            tokens_per_s: tokens / seconds,
            tokens_per_s_ci: interval(|p| p.seconds),
            accepted_per_pass: tokens / rounds - 1.0,
            drafted_per_pass: total(|p| p.drafted) / rounds,
            rounds,
            switches: total(|p| p.switches),
            by_prompt,
        }
    }
}

/// The largest tree and the price of every prefix.
struct Menu<'a> {
    source: Source<'a>,
    shape: crate::Shape,
    walk: Option<Walk>,
    prices: Vec<Price>,
    switch_s: f64,
}

impl<'a> Menu<'a> {
    fn new(source: Source<'a>, cost: &CostModel, policy: &Policy) -> Result<Self, SimError> {
        let most = match policy {
            Policy::Fixed(budget) => budget.nodes(),
            Policy::ConfidenceStop { most, .. } => most.nodes(),
            Policy::Bandit { arms, .. } => arms.iter().map(|b| b.nodes()).max().unwrap_or(0),
            Policy::EmaThreshold { tiers, .. } => tiers.iter().map(|t| t.1.nodes()).max().unwrap_or(0).max(Budget::MIN),
            Policy::Table(table) => table.largest(),
            _ => Budget::MAX,
        };
        let (shape, walk, prices) = match source {
            Source::Model { model, kind, max_depth } => {
                let shape = kind.grow(model, most, max_depth).shape;
                let price = |n: usize| {
                    // A fixed budget pays for its own tree only.
                    if matches!(policy, Policy::Fixed(_)) && n != most {
                        return Ok(Price { fixed_s: 0.0, context_s: 0.0 });
                    }
                    cost.price(shape.prefix(n).drafted(), kind.grow(model, n, max_depth).steps)
                };
                let prices: Result<Vec<_>, _> = (0..=most).map(price).collect();
                (shape.clone(), Some(Walk::new(model, &shape)), prices?)
            }
            Source::Trace { replay, steps } => {
                let largest = replay.prompts().iter().flatten().map(|r| r.drafted()).max().unwrap_or(0).min(most);
                let prices: Result<Vec<_>, _> = (0..=largest).map(|n| cost.price(n, steps.of(n))).collect();
                (crate::Shape::root(), None, prices?)
            }
        };
        Ok(Self { source, shape, walk, prices, switch_s: cost.switch_s })
    }

    fn play(&self, policy: &Policy, rate: f64, run: &Run) -> Result<Vec<PromptSums>, SimError> {
        let prompts = match self.source {
            Source::Model { .. } => run.prompts,
            Source::Trace { replay, .. } => replay.prompts().len(),
        };
        let one = |prompt: usize| match self.source {
            Source::Model { model, .. } => self.play_model(model, policy, rate, run, prompt),
            Source::Trace { replay, .. } => self.play_trace(replay, policy, rate, prompt),
        };
        let threads = run.threads.get().min(prompts.max(1));
        let mut sums = vec![PromptSums::default(); prompts];
        std::thread::scope(|scope| {
            let chunk = prompts.div_ceil(threads).max(1);
            for (i, part) in sums.chunks_mut(chunk).enumerate() {
                let one = &one;
                scope.spawn(move || part.iter_mut().enumerate().for_each(|(j, s)| *s = one(i * chunk + j)));
            }
        });
        sums.retain(|p| p.rounds > 0.0);
        if sums.is_empty() {
            return Err(SimError::Number { what: "prompts times rounds".into(), found: 0.0, expected: "at least 1" });
        }
        Ok(sums)
    }

    fn play_model(&self, model: &AcceptanceModel, policy: &Policy, rate: f64, run: &Run, prompt: usize) -> PromptSums {
        let Some(walk) = &self.walk else { return PromptSums::default() };
        let mut sampler = Sampler::new(model, walk, stream(run.seed, run.repetition, prompt as u32));
        let mut table = Tally::new(policy, rate);
        let (mut path, mut seen, mut seen_for) = (Vec::new(), Vec::new(), None);
        let mut context = run.context;
        for _ in 0..run.rounds_per_prompt {
            let latent = sampler.latent();
            if policy.reads_confidence() && seen_for != Some(latent) {
                model.seen_probabilities(&self.shape, latent, &mut seen);
                seen_for = Some(latent);
            }
            sampler.round(&mut path);
            let nodes = table.decider.decide(&View { seen: &seen, prices: &self.prices, context, outcome: &path });
            let accepted = path.iter().take_while(|&&row| row <= nodes).count();
            sampler.commit(accepted);
            table.add(
                nodes,
                nodes.min(self.shape.drafted()),
                accepted as f64,
                self.prices[nodes].seconds(context),
                self.switch_s,
            );
            context += accepted + 1;
        }
        table.sums
    }

    fn play_trace(&self, replay: &Replay, policy: &Policy, rate: f64, prompt: usize) -> PromptSums {
        let mut table = Tally::new(policy, rate);
        let rounds = &replay.prompts()[prompt];
        let mut at = 0;
        while let Some(round) = rounds.get(at) {
            let view = View { seen: &round.seen, prices: &self.prices, context: round.context, outcome: &round.accepted };
            let nodes = table.decider.decide(&view);
            let drafted = nodes.min(round.drafted());
            let realised = round.accepted(nodes);
            // An oracle knows the realised path, so only that counts for it.
            let counted = replay.is_dense() || *policy == Policy::Oracle;
            // Nothing behind the end of the answer counts.
            let received = if replay.is_dense() { realised.min(rounds.len() - at - 1) } else { realised };
            let accepted = if counted { received as f64 } else { round.tau(nodes) - 1.0 };
            table.add(nodes, drafted, accepted, self.prices[drafted].seconds(round.context), self.switch_s);
            at += if replay.is_dense() { received + 1 } else { 1 };
        }
        table.sums
    }
}

/// Running sums of a prompt.
struct Tally<'a> {
    decider: Decider<'a>,
    sums: PromptSums,
    last: Option<usize>,
}

impl<'a> Tally<'a> {
    fn new(policy: &'a Policy, rate: f64) -> Self {
        Self { decider: Decider::new(policy, rate), sums: PromptSums::default(), last: None }
    }

    fn add(&mut self, nodes: usize, drafted: usize, accepted: f64, round_s: f64, switch_s: f64) {
        let switched = self.last.is_some_and(|last| last != nodes);
        let seconds = round_s + if switched { switch_s } else { 0.0 };
        self.last = Some(nodes);
        self.sums.rounds += 1.0;
        self.sums.tokens += accepted + 1.0;
        self.sums.drafted += drafted as f64;
        self.sums.seconds += seconds;
        self.sums.switches += f64::from(switched);
        self.decider.observe(nodes, accepted, seconds);
    }
}

#[cfg(test)]
#[path = "simulate_tests.rs"]
mod tests;
