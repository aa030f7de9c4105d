//! Maximum-likelihood fits of every law of acceptance to a trace, and how well each predicts the counts of accepted lengths.
//! Uses which drafts were accepted, never the recorded probabilities. Ranks count among the children that were offered.

use crate::{
    AcceptanceModel, Law, Scope, Shape, SimError, Trace,
    hidden::{Observation, fit_markov},
    statistics::{chi_square_tail, ln_gamma},
    trace::TraceRound,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Which law to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// One rate.
    Constant,
    /// A rate per depth.
    Positions,
    /// A rate per depth and rank.
    DepthRank,
    /// Two regimes along the text.
    Markov,
    /// Difficulty drawn per round.
    BetaRound,
    /// Difficulty drawn per prompt.
    BetaPrompt,
}

impl Family {
    /// All families, simplest first.
    pub const ALL: [Self; 6] =
        [Self::Constant, Self::Positions, Self::DepthRank, Self::Markov, Self::BetaRound, Self::BetaPrompt];
}

/// A fitted law.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelFit {
    /// Family.
    pub family: Family,
    /// Law.
    pub model: AcceptanceModel,
    /// Free parameters.
    pub parameters: usize,
    /// Natural logarithm of the likelihood of all accepted paths.
    pub log_likelihood: f64,
    /// Akaike's criterion `2 parameters - 2 log_likelihood`: smaller is better.
    pub aic: f64,
    /// Counted tokens per pass, bonus included.
    pub counted_tau: f64,
    /// The law's tokens per pass over the same trees.
    pub model_tau: f64,
    /// Chi-square over the histogram of accepted lengths.
    pub goodness: Goodness,
}

/// Pearson's test on counts of accepted lengths, cells pooled from the deep end to an expectation of 5. It takes rounds for
/// independent: where difficulty lasts longer than a round the p-value is too small.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Goodness {
    /// `(counted, expected)` rounds per pooled cell, from length 0.
    pub cells: Vec<(f64, f64)>,
    /// Statistic.
    pub chi_square: f64,
    /// Cells - 1 - parameters; 0 when the law has as many parameters as there are cells.
    pub freedom: usize,
    /// Probability of a larger statistic under the law; absent without a degree of freedom.
    pub p_value: Option<f64>,
}

/// Fits one family.
///
/// Error: nothing was drafted.
pub fn fit_model(trace: &Trace, family: Family) -> Result<ModelFit, SimError> {
    let prompts = walked(trace);
    let played: Vec<Played> = prompts.iter().flatten().map(|r| Played::new(r)).collect();
    if played.iter().all(|p| p.shape.drafted() == 0) {
        let reason = "the trace holds plain rounds only (record with a drafter)".into();
        return Err(SimError::NotIdentifiable { what: "acceptance", reason });
    }
    let (law, log_likelihood) = match family {
        Family::Constant => constant(&played),
        Family::Positions => hazards(&played, false),
        Family::DepthRank => hazards(&played, true),
        Family::BetaRound => beta(played.iter().map(|p| (p.hits(), p.misses())), Scope::Round),
        Family::BetaPrompt => {
            let total = |rounds: &Vec<&TraceRound>| {
                rounds.iter().map(|r| Played::new(r)).fold((0, 0), |(h, m), p| (h + p.hits(), m + p.misses()))
            };
            beta(prompts.iter().map(total), Scope::Prompt)
        }
        Family::Markov => {
            let sequences: Vec<Vec<Observation>> = prompts.iter().flat_map(|rounds| sequences(rounds)).collect();
            fit_markov(&sequences)
        }
    };
    let parameters = match &law {
        Law::Constant { .. } => 1,
        Law::Positions { conditional, .. } => conditional.len(),
        Law::DepthRank { rates, .. } => rates.iter().map(Vec::len).sum(),
        Law::Markov { .. } => 4,
        Law::Beta { .. } => 2,
    };
    let model = AcceptanceModel::new(law)?;
    let (goodness, model_tau) = goodness(&model, &played, parameters);
    let counted_tau = played.iter().map(|p| p.hits() as f64 + 1.0).sum::<f64>() / played.len() as f64;
    let aic = 2.0 * parameters as f64 - 2.0 * log_likelihood;
    Ok(ModelFit { family, model, parameters, log_likelihood, aic, counted_tau, model_tau, goodness })
}

/// Fits every family, the smallest Akaike criterion first.
///
/// Error: nothing was drafted.
pub fn fit_all(trace: &Trace) -> Result<Vec<ModelFit>, SimError> {
    let fits: Result<Vec<ModelFit>, SimError> = Family::ALL.iter().map(|&family| fit_model(trace, family)).collect();
    let mut fits = fits?;
    fits.sort_by(|a, b| a.aic.total_cmp(&b.aic));
    Ok(fits)
}

/// Rounds of a dense trace that a walk over the text visits; all rounds otherwise.
fn walked(trace: &Trace) -> Vec<Vec<&TraceRound>> {
    let mut prompts = trace.by_prompt();
    if trace.is_dense() {
        for rounds in &mut prompts {
            let mut at = 0;
            let mut next = 0;
            rounds.retain(|r| {
                let visited = at == next;
                if visited {
                    next = at + r.accepted.len() + 1;
                }
                at += 1;
                visited
            });
        }
    }
    prompts
}

/// A round as trials: at every visited row the offered children, and the one that hit.
struct Played {
    shape: Shape,
    /// Children offered at the root and at every accepted row.
    offered: Vec<usize>,
    /// Rank of the hit at every depth, among the offered.
    ranks: Vec<usize>,
}

impl Played {
    fn new(round: &TraceRound) -> Self {
        let place = |row: usize| {
            let node = round.nodes[row - 1];
            round.nodes.iter().filter(|n| n.parent == node.parent && n.rank < node.rank).count()
        };
        let mut shape = Shape::root();
        (1..=round.nodes.len()).for_each(|row| shape.push(round.nodes[row - 1].parent, place(row)));
        let offered_at = |row: usize| round.nodes.iter().filter(|n| n.parent == row).count();
        let offered = std::iter::once(0).chain(round.accepted.iter().copied()).map(offered_at).collect();
        let ranks = round.accepted.iter().map(|&row| place(row)).collect();
        Self { shape, offered, ranks }
    }

    fn hits(&self) -> usize {
        self.ranks.len()
    }

    /// Better children that missed, and all children where the path stopped.
    fn misses(&self) -> usize {
        self.ranks.iter().sum::<usize>() + self.offered[self.ranks.len()]
    }
}

fn constant(played: &[Played]) -> (Law, f64) {
    let (hits, misses) = played.iter().fold((0, 0), |(h, m), p| (h + p.hits(), m + p.misses()));
    (Law::Constant { alpha: hits as f64 / (hits + misses) as f64 }, coin(hits, misses))
}

/// Log-likelihood of a coin at its own estimate.
fn coin(hits: usize, misses: usize) -> f64 {
    let part = |k: usize| if k == 0 { 0.0 } else { k as f64 * (k as f64 / (hits + misses) as f64).ln() };
    part(hits) + part(misses)
}

/// Rates per depth, or per depth and rank: the share of tries that hit among those reached (a product-limit estimate, exact
/// for trees of any varying shape).
fn hazards(played: &[Played], by_rank: bool) -> (Law, f64) {
    let mut tries: BTreeMap<(usize, usize), (usize, usize)> = BTreeMap::new();
    for p in played {
        for depth in 0..p.offered.len() {
            let hit = p.ranks.get(depth).copied();
            for rank in 0..hit.map_or(p.offered[depth], |r| r + 1) {
                let cell = tries.entry((depth, if by_rank { rank } else { 0 })).or_default();
                if hit == Some(rank) { cell.0 += 1 } else { cell.1 += 1 }
            }
        }
    }
    let log_likelihood = tries.values().map(|&(h, m)| coin(h, m)).sum();
    let mut rates: Vec<Vec<f64>> = Vec::new();
    let mut left = 1.0;
    for (&(depth, rank), &(hits, misses)) in &tries {
        if rates.len() <= depth {
            rates.push(Vec::new());
            left = 1.0;
        }
        debug_assert_eq!(rates[depth].len(), rank);
        let hazard = hits as f64 / (hits + misses) as f64;
        rates[depth].push(left * hazard);
        left *= 1.0 - hazard;
    }
    let law = if by_rank {
        Law::DepthRank { rates, repeats: false }
    } else {
        Law::Positions { conditional: rates.concat(), repeats: false }
    };
    (law, log_likelihood)
}

/// Golden-section search inside golden-section search: over the mean for every concentration.
fn beta(counts: impl Iterator<Item = (usize, usize)>, scope: Scope) -> (Law, f64) {
    let mut groups: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    counts.for_each(|c| *groups.entry(c).or_default() += 1.0);
    let log_beta = |a: f64, b: f64| ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b);
    let likelihood = |mean: f64, concentration: f64| -> f64 {
        let (a, b) = (mean * concentration, (1.0 - mean) * concentration);
        let base = log_beta(a, b);
        groups.iter().map(|(&(h, m), n)| n * (log_beta(a + h as f64, b + m as f64) - base)).sum()
    };
    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    let best_mean = |c: f64| logistic(maximum(-6.0, 6.0, |x| likelihood(logistic(x), c)));
    // e^-2 is a coin that is almost decided, e^9 is a constant.
    let concentration = maximum(-2.0, 9.0, |x| likelihood(best_mean(x.exp()), x.exp())).exp();
    let mean = best_mean(concentration);
    (Law::Beta { mean, concentration, scope }, likelihood(mean, concentration))
}

fn maximum(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_8;
    let (mut a, mut b) = (high - GOLDEN * (high - low), low + GOLDEN * (high - low));
    let (mut fa, mut fb) = (f(a), f(b));
    for _ in 0..45 {
        if fa < fb {
            (low, a, fa) = (a, b, fb);
            b = low + GOLDEN * (high - low);
            fb = f(b);
        } else {
            (high, b, fb) = (b, a, fa);
            a = high - GOLDEN * (high - low);
            fa = f(a);
        }
    }
    0.5 * (low + high)
}

/// Every position of the text as (hits, misses), or nothing where no draft reached; cut where rounds do not meet.
fn sequences(rounds: &[&TraceRound]) -> Vec<Vec<Observation>> {
    let mut all: Vec<Vec<Observation>> = Vec::new();
    let mut expected = None;
    for round in rounds {
        if expected != Some(round.position) {
            all.push(Vec::new());
        }
        let played = Played::new(round);
        let sequence = all.last_mut().expect("a sequence was opened above");
        sequence.extend(played.ranks.iter().map(|&rank| Some((1, rank))));
        let offered = played.offered[played.ranks.len()];
        sequence.push(if offered == 0 { None } else { Some((0, offered)) });
        expected = Some(round.position + played.hits() as u64 + 1);
    }
    all
}

/// Counts of accepted lengths against the law's over the same trees, and the law's tau.
fn goodness(model: &AcceptanceModel, played: &[Played], parameters: usize) -> (Goodness, f64) {
    let mut by_shape: Vec<(&Shape, f64)> = Vec::new();
    for p in played {
        match by_shape.iter_mut().find(|s| *s.0 == p.shape) {
            Some(known) => known.1 += 1.0,
            None => by_shape.push((&p.shape, 1.0)),
        }
    }
    let longest = played.iter().map(|p| p.shape.max_depth()).max().unwrap_or(0);
    let mut cells = vec![(0.0, 0.0); longest + 1];
    played.iter().for_each(|p| cells[p.hits()].0 += 1.0);
    let mut tau = 0.0;
    for (shape, rounds) in by_shape {
        let mut survival = vec![1.0];
        survival.extend(model.survival(shape));
        survival.push(0.0);
        for (length, w) in survival.windows(2).enumerate() {
            cells[length].1 += rounds * (w[0] - w[1]);
        }
        tau += rounds * survival.iter().sum::<f64>() / played.len() as f64;
    }
    while cells.len() > 1 && cells[cells.len() - 1].1 < 5.0 {
        let last = cells.pop().unwrap_or_default();
        let into = cells.len() - 1;
        cells[into] = (cells[into].0 + last.0, cells[into].1 + last.1);
    }
    let chi_square = cells.iter().filter(|c| c.1 > 0.0).map(|(o, e)| (o - e).powi(2) / e).sum();
    let freedom = (cells.len() - 1).saturating_sub(parameters);
    let p_value = (freedom > 0).then(|| chi_square_tail(chi_square, freedom));
    (Goodness { cells, chi_square, freedom, p_value }, tau)
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
