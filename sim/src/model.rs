//! Parametric laws of acceptance, and what they say in closed form: the probability of every tree path and of every accepted
//! length. `a(d, r)` is the probability that the target's token at depth `d` is the drafter's choice of rank `r`, given that
//! the path above was accepted. Choices exclude each other, so the rates of one node sum to at most 1.
//! Knows no randomness (see `sampler`) and no cost.

use crate::{
    Shape, SimError,
    error::{positive, probability},
};
use serde::Serialize;

/// A checked law of acceptance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AcceptanceModel(Law);

/// The laws. Where a law knows one rate per position only, rank `r` hits with `alpha (1 - alpha)^r`: every further choice
/// hits what is left with the same rate, so that `k` choices cover `1 - (1 - alpha)^k` (independent tries).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Law {
    /// One rate everywhere.
    Constant {
        /// Rate of the best child.
        alpha: f64,
    },
    /// A rate per depth.
    Positions {
        /// `[d]` = rate at depth `d + 1`, given that depth `d` was accepted.
        conditional: Vec<f64>,
        /// Deeper drafts repeat the last rate; otherwise they are never accepted.
        repeats: bool,
    },
    /// A rate per depth and rank, nothing assumed.
    DepthRank {
        /// `[d][r]`, given that depth `d` was accepted.
        rates: Vec<Vec<f64>>,
        /// Deeper drafts repeat the last row; otherwise they are never accepted.
        repeats: bool,
    },
    /// Easy and hard spans of text: the regime may change at every emitted token.
    Markov {
        /// Rate in easy spans, then in hard spans.
        alpha: [f64; 2],
        /// Probability of leaving the regime after a token: 1 / mean span.
        leave: [f64; 2],
    },
    /// A difficulty drawn from Beta(mean * concentration, (1 - mean) * concentration).
    Beta {
        /// Mean rate.
        mean: f64,
        /// Pseudo-observations; small is wild.
        concentration: f64,
        /// When a new difficulty is drawn.
        scope: Scope,
    },
}

/// How long a drawn difficulty lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One round.
    Round,
    /// One prompt: what makes prompts, not rounds, the unit of every confidence interval.
    Prompt,
}

impl AcceptanceModel {
    /// Checks a law. Errors: rates outside 0..=1, siblings that sum above 1, no position, spans below one token.
    pub fn new(law: Law) -> Result<Self, SimError> {
        match &law {
            Law::Constant { alpha } => {
                probability("acceptance rate", *alpha)?;
            }
            Law::Positions { conditional, .. } => {
                not_empty(conditional)?;
                conditional.iter().enumerate().try_for_each(|(i, &a)| rate(i + 1, a))?;
            }
            Law::DepthRank { rates, .. } => {
                not_empty(rates)?;
                for (depth, row) in rates.iter().enumerate() {
                    row.iter().try_for_each(|&a| rate(depth + 1, a))?;
                    // A sum of exactly 1 may round a little above it.
                    probability(&format!("sum of rates at depth {}", depth + 1), row.iter().sum::<f64>() / (1.0 + 1e-9))?;
                }
            }
            Law::Markov { alpha, leave } => {
                for i in 0..2 {
                    probability("acceptance rate", alpha[i])?;
                    positive("probability of leaving a span (1 / mean span)", leave[i])?;
                    probability("probability of leaving a span (1 / mean span)", leave[i])?;
                }
            }
            Law::Beta { mean, concentration, .. } => {
                probability("mean acceptance rate", *mean)?;
                positive("mean acceptance rate", *mean)?;
                positive("1 - mean acceptance rate", 1.0 - mean)?;
                positive("concentration", *concentration)?;
            }
        }
        Ok(Self(law))
    }

    /// One rate everywhere.
    pub fn constant(alpha: f64) -> Result<Self, SimError> {
        Self::new(Law::Constant { alpha })
    }

    /// The constant rate whose chain of `drafts` nodes lands `tau` tokens per pass, bonus included: converts the mean length
    /// that papers print into a rate.
    ///
    /// Error: no draft, or a tau outside 1..=drafts + 1.
    pub fn constant_from_tau(tau: f64, drafts: usize) -> Result<Self, SimError> {
        if drafts == 0 || !(1.0..=drafts as f64 + 1.0).contains(&tau) {
            let what = format!("tau of a chain of {drafts} drafts");
            return Err(SimError::Number { what, found: tau, expected: "at least 1 and at most drafts + 1, with a draft" });
        }
        let chain = Shape::chain(drafts);
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..60 {
            let alpha = 0.5 * (low + high);
            if Self(Law::Constant { alpha }).tau(&chain) < tau { low = alpha } else { high = alpha }
        }
        Self::constant(high)
    }

    /// From the share of rounds that accepted depth 1, 2, ... (what vLLM's and straw's per-position figures report).
    /// The shares must not rise; the rate at a depth is its share over the share before.
    pub fn from_survival(survival: &[f64], repeats: bool) -> Result<Self, SimError> {
        let mut before = 1.0;
        let mut conditional = Vec::new();
        for &share in survival {
            if share > before {
                return Err(SimError::Number {
                    what: format!("share of rounds that accept position {}", conditional.len() + 1),
                    found: share,
                    expected: "at most the share of the position before (conditional rates are written conditional:...)",
                });
            }
            conditional.push(if before > 0.0 { share / before } else { 0.0 });
            before = share;
        }
        Self::new(Law::Positions { conditional, repeats })
    }

    /// The law.
    pub fn law(&self) -> &Law {
        &self.0
    }

    /// `a(depth, rank)` on average over text: what a tree is grown by. `depth` counts from 1.
    pub fn rate(&self, depth: usize, rank: usize) -> f64 {
        match &self.0 {
            Law::Constant { alpha } => tries(*alpha, rank),
            Law::Positions { conditional, repeats } => row(conditional, *repeats, depth).map_or(0.0, |&a| tries(a, rank)),
            Law::DepthRank { rates, repeats } => row(rates, *repeats, depth).and_then(|r| r.get(rank)).copied().unwrap_or(0.0),
            Law::Markov { alpha, .. } => {
                let share = self.regime_shares();
                (0..2).map(|s| share[s] * tries(alpha[s], rank)).sum()
            }
            Law::Beta { mean, concentration, .. } => beta_moment(*mean, *concentration, 1, rank),
        }
    }

    /// Ranks worth offering at one node: the length of a measured row, without end otherwise.
    pub fn ranks(&self, depth: usize) -> usize {
        match &self.0 {
            Law::DepthRank { rates, repeats } => row(rates, *repeats, depth).map_or(0, Vec::len),
            _ => usize::MAX,
        }
    }

    /// Probability that the accepted path runs through each row; the root has 1.
    pub fn path_probabilities(&self, shape: &Shape) -> Vec<f64> {
        match &self.0 {
            Law::Markov { .. } => {
                let start = self.regime_at_round_start(shape);
                let mass = self.regime_mass(shape, start);
                mass.iter().map(|m| m[0] + m[1]).collect()
            }
            Law::Beta { mean, concentration, .. } => {
                let missed = misses(shape);
                (0..shape.rows()).map(|v| beta_moment(*mean, *concentration, shape.depth(v), missed[v])).collect()
            }
            _ => {
                let mut product = vec![1.0; shape.rows()];
                for v in 1..shape.rows() {
                    product[v] = product[shape.parent(v)] * self.rate(shape.depth(v), shape.rank(v));
                }
                product
            }
        }
    }

    /// `[d]` = probability that a round accepts at least `d + 1` drafts.
    pub fn survival(&self, shape: &Shape) -> Vec<f64> {
        let mut survival = vec![0.0; shape.max_depth()];
        for (v, p) in self.path_probabilities(shape).into_iter().enumerate().skip(1) {
            survival[shape.depth(v) - 1] += p;
        }
        survival
    }

    /// Expected tokens per target pass, the bonus token included: `1 + sum of path probabilities` (facts of trees that do
    /// not depend on the target's noise; Sequoia, arXiv 2402.12374, section 3).
    pub fn tau(&self, shape: &Shape) -> f64 {
        self.path_probabilities(shape).iter().sum()
    }

    /// Path probabilities as a drafter sees them that knows the difficulty at hand: `start` is the regime (Markov) or the
    /// drawn rate (Beta); other laws ignore it.
    pub(crate) fn seen_probabilities(&self, shape: &Shape, start: Latent, out: &mut Vec<f64>) {
        out.clear();
        match (&self.0, start) {
            (Law::Markov { .. }, Latent::Regime(s)) => {
                let mut law = [0.0; 2];
                law[s] = 1.0;
                out.extend(self.regime_mass(shape, law).iter().map(|m| m[0] + m[1]));
            }
            (Law::Beta { .. }, Latent::Rate(alpha)) => {
                out.push(1.0);
                for v in 1..shape.rows() {
                    out.push(out[shape.parent(v)] * tries(alpha, shape.rank(v)));
                }
            }
            _ => out.extend(self.path_probabilities(shape)),
        }
    }

    /// Share of text in each regime.
    fn regime_shares(&self) -> [f64; 2] {
        let Law::Markov { leave, .. } = &self.0 else { return [1.0, 0.0] };
        let easy = leave[1] / (leave[0] + leave[1]);
        [easy, 1.0 - easy]
    }

    /// `[row][regime]`: probability of reaching the row with its next position in the regime.
    fn regime_mass(&self, shape: &Shape, start: [f64; 2]) -> Vec<[f64; 2]> {
        let Law::Markov { alpha, leave } = &self.0 else { return vec![] };
        let mut mass = vec![start; shape.rows()];
        for v in 1..shape.rows() {
            let parent = mass[shape.parent(v)];
            let hit: [f64; 2] = std::array::from_fn(|s| parent[s] * tries(alpha[s], shape.rank(v)));
            mass[v] = advance(hit, leave);
        }
        mass
    }

    /// Regime of the first drafted position of a round in the long run. It is not the share of text: a round that ends
    /// early is more likely to have met a hard span, and budgets change where rounds begin.
    fn regime_at_round_start(&self, shape: &Shape) -> [f64; 2] {
        let Law::Markov { alpha, leave } = &self.0 else { return [1.0, 0.0] };
        let to_hard_and_easy: [f64; 2] = std::array::from_fn(|s| {
            let mut start = [0.0; 2];
            start[s] = 1.0;
            let mass = self.regime_mass(shape, start);
            let mut stopped = mass.clone();
            for v in 1..shape.rows() {
                let parent = shape.parent(v);
                (0..2).for_each(|r| stopped[parent][r] -= mass[parent][r] * tries(alpha[r], shape.rank(v)));
            }
            stopped.iter().map(|&m| advance(m, leave)[1 - s]).sum()
        });
        let total = to_hard_and_easy[0] + to_hard_and_easy[1];
        if total <= 0.0 { self.regime_shares() } else { [to_hard_and_easy[1] / total, to_hard_and_easy[0] / total] }
    }
}

/// The hidden difficulty of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Latent {
    None,
    Regime(usize),
    Rate(f64),
}

/// Probability that the choice of rank `rank` hits and the better ones missed.
pub(crate) fn tries(alpha: f64, rank: usize) -> f64 {
    alpha * (1.0 - alpha).powi(rank as i32)
}

/// One token further: who leaves goes to the other regime.
fn advance(mass: [f64; 2], leave: &[f64; 2]) -> [f64; 2] {
    [mass[0] * (1.0 - leave[0]) + mass[1] * leave[1], mass[0] * leave[0] + mass[1] * (1.0 - leave[1])]
}

/// Better choices that missed along the path of every row.
pub(crate) fn misses(shape: &Shape) -> Vec<usize> {
    let mut missed = vec![0; shape.rows()];
    (1..shape.rows()).for_each(|v| missed[v] = missed[shape.parent(v)] + shape.rank(v));
    missed
}

/// `E[alpha^hits (1 - alpha)^misses]` under Beta: a ratio of rising factorials.
pub(crate) fn beta_moment(mean: f64, concentration: f64, hits: usize, misses: usize) -> f64 {
    let (a, b) = (mean * concentration, (1.0 - mean) * concentration);
    let up = |i: usize| (a + i as f64) / (a + b + i as f64);
    let down = |j: usize| (b + j as f64) / (a + b + (hits + j) as f64);
    (0..hits).map(up).product::<f64>() * (0..misses).map(down).product::<f64>()
}

fn row<T>(rows: &[T], repeats: bool, depth: usize) -> Option<&T> {
    rows.get(depth - 1).or(if repeats { rows.last() } else { None })
}

fn rate(depth: usize, a: f64) -> Result<(), SimError> {
    probability(&format!("acceptance rate at depth {depth}"), a).map(|_| ())
}

fn not_empty<T>(rates: &[T]) -> Result<(), SimError> {
    if rates.is_empty() {
        Err(SimError::Number { what: "number of positions".into(), found: 0.0, expected: "at least 1" })
    } else {
        Ok(())
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
