//! The whole curve over budgets and shapes, with paired intervals, and one answer: the smallest budget within the noise of the
//! best, or off. Too little data is refused with the number of prompts that are missing. Plays rounds through `simulate`.

use crate::{
    AcceptanceModel, CostModel, DrafterSteps, Interval, Policy, Replay, Run, ShapeKind, SimError, Source, Trace,
    simulate::{PromptSums, play},
    statistics::{Resamples, middle},
};
use serde::Serialize;
use specdec::Budget;

/// One workload to tune for.
#[derive(Clone, Copy, Debug)]
pub enum Workload<'a> {
    /// A law of acceptance: every shape can be grown.
    Model(&'a AcceptanceModel),
    /// A recorded trace: chain and best-first only.
    Trace {
        /// Trace.
        trace: &'a Trace,
        /// Sequential steps of its drafter.
        steps: DrafterSteps,
    },
}

/// What to try and how sure to be.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneOptions {
    /// Shapes.
    pub shapes: Vec<ShapeKind>,
    /// Deepest draft.
    pub max_depth: usize,
    /// Rounds to play for laws; seed and threads for both.
    pub run: Run,
    /// Largest half width of the best configuration's interval, as a share of its tokens per second.
    pub max_noise: f64,
    /// Configurations within this share of the best are ties even where the data could tell them apart.
    pub tie: f64,
}

impl TuneOptions {
    /// All five shapes at depth 15, 5 % noise, 1 % ties.
    pub fn new(run: Run) -> Self {
        let frontier = ShapeKind::Frontier { expand_per_round: 4, expand_width: 4, max_rounds: 16 };
        let shapes = vec![ShapeKind::Chain, ShapeKind::KAry(2), ShapeKind::BestFirst, frontier, ShapeKind::Sequoia];
        Self { shapes, max_depth: 15, run, max_noise: 0.05, tie: 0.01 }
    }
}

/// One configuration's figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Family of trees.
    pub shape: ShapeKind,
    /// Drafted nodes; 0 is plain decoding.
    pub budget: Budget,
    /// Tokens per pass, bonus included.
    pub tau: f64,
    /// 95 %.
    pub tau_ci: Interval,
    /// Tokens per second.
    pub tokens_per_s: f64,
    /// 95 %.
    pub tokens_per_s_ci: Interval,
    /// Over budget 0 of the same prompts.
    pub speedup: f64,
    /// 95 %, paired.
    pub speedup_ci: Interval,
    /// Tau at which this configuration would be exactly as fast as plain decoding: its seconds per round over the plain ones.
    pub break_even_tau: f64,
    /// True when the difference to the best is noise or at most the tie share.
    pub ties_with_best: bool,
}

/// The tuner's answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuning {
    /// Every configuration: budget 0 first, then shape by shape.
    pub curve: Vec<CurvePoint>,
    /// Index of the largest tokens per second.
    pub fastest: usize,
    /// Index of the advice: the smallest budget that ties with the fastest.
    pub advice: usize,
}

impl Tuning {
    /// The advised configuration.
    pub fn advised(&self) -> &CurvePoint {
        &self.curve[self.advice]
    }

    /// The zero point of a shape: the smallest budget from which on every budget of the shape is slower than plain decoding
    /// beyond doubt. `None` when the largest budget still is not.
    pub fn zero_point(&self, shape: &ShapeKind) -> Option<Budget> {
        let points = self.curve.iter().skip(1).filter(|p| p.shape == *shape);
        let losing: Vec<(Budget, bool)> = points.map(|p| (p.budget, p.speedup_ci.high < 1.0)).collect();
        losing.iter().rev().take_while(|l| l.1).last().map(|l| l.0)
    }
}

/// Plays every budget 0, 3..=32 of every shape and compares.
///
/// Errors: fewer than two prompts or too wide an interval ([`SimError::TooNoisy`]), V(n) not measured to 33 rows, a shape that
/// the trace does not hold.
pub fn tune(workload: Workload, cost: &CostModel, options: &TuneOptions) -> Result<Tuning, SimError> {
    let mut played: Vec<(ShapeKind, Budget, Vec<PromptSums>)> = Vec::new();
    for shape in &options.shapes {
        let replay = match workload {
            Workload::Trace { trace, .. } => Some(Replay::new(trace, shape, options.max_depth)?),
            Workload::Model(_) => None,
        };
        let skip = usize::from(!played.is_empty());
        for budget in Budget::all().skip(skip) {
            let source = match (workload, &replay) {
                (Workload::Model(model), _) => Source::Model { model, kind: shape, max_depth: options.max_depth },
                (Workload::Trace { steps, .. }, Some(replay)) => Source::Trace { replay, steps },
                (Workload::Trace { .. }, None) => continue,
            };
            played.push((shape.clone(), budget, play(source, cost, &Policy::Fixed(budget), &options.run)?));
        }
    }
    compare(played, options)
}

/// Figures of all configurations over the same resampled prompts.
fn compare(played: Vec<(ShapeKind, Budget, Vec<PromptSums>)>, options: &TuneOptions) -> Result<Tuning, SimError> {
    let prompts = played.first().map_or(0, |p| p.2.len());
    let resamples = Resamples::new(prompts, options.run.seed);
    let needs_two = || SimError::TooNoisy {
        what: "tokens per second",
        prompts,
        found_percent: f64::INFINITY,
        allowed_percent: 100.0 * options.max_noise,
        more: 8,
    };
    let rates = |sums: &[PromptSums], den: fn(&PromptSums) -> f64| {
        resamples.ratios(&sums.iter().map(|p| (p.tokens, den(p))).collect::<Vec<_>>()).ok_or_else(needs_two)
    };
    let total = |sums: &[PromptSums], f: fn(&PromptSums) -> f64| sums.iter().map(f).sum::<f64>();
    let mut curve = Vec::new();
    let mut replicates: Vec<Vec<f64>> = Vec::new();
    let mut plain = (0.0, 0.0);
    for (shape, budget, sums) in played {
        let (tokens, rounds, seconds) = (total(&sums, |p| p.tokens), total(&sums, |p| p.rounds), total(&sums, |p| p.seconds));
        if curve.is_empty() {
            plain = (tokens / seconds, seconds / rounds);
        }
        let speed = rates(&sums, |p| p.seconds)?;
        let reference = replicates.first().unwrap_or(&speed);
        let speedup_ci = middle(speed.iter().zip(reference).map(|(a, b)| a / b).collect());
        curve.push(CurvePoint {
            shape,
            budget,
            tau: tokens / rounds,
            tau_ci: middle(rates(&sums, |p| p.rounds)?),
            tokens_per_s: tokens / seconds,
            tokens_per_s_ci: middle(speed.clone()),
            speedup: tokens / seconds / plain.0,
            speedup_ci,
            break_even_tau: seconds / rounds / plain.1,
            ties_with_best: false,
        });
        replicates.push(speed);
    }
    let speeds: Vec<f64> = curve.iter().map(|p| p.tokens_per_s).collect();
    let by_speed = |&a: &usize, &b: &usize| speeds[a].total_cmp(&speeds[b]);
    // Equal speed: the earlier, hence smaller, wins.
    let fastest = (0..curve.len()).rev().max_by(by_speed).ok_or_else(needs_two)?;
    let top = &curve[fastest];
    let noise = top.tokens_per_s_ci.half_width() / top.tokens_per_s;
    if noise > options.max_noise {
        let wanted = prompts as f64 * (noise / options.max_noise).powi(2);
        return Err(SimError::TooNoisy {
            what: "tokens per second",
            prompts,
            found_percent: 100.0 * noise,
            allowed_percent: 100.0 * options.max_noise,
            more: (wanted - prompts as f64).ceil() as usize,
        });
    }
    let limit = top.tokens_per_s * (1.0 - options.tie);
    for i in 0..curve.len() {
        let gap = middle(replicates[i].iter().zip(&replicates[fastest]).map(|(a, b)| a - b).collect());
        curve[i].ties_with_best = curve[i].tokens_per_s >= limit || gap.high >= 0.0;
    }
    let ties = (0..curve.len()).filter(|&i| curve[i].ties_with_best);
    let advice = ties.min_by(|&a, &b| curve[a].budget.cmp(&curve[b].budget).then(by_speed(&b, &a))).unwrap_or(fastest);
    Ok(Tuning { curve, fastest, advice })
}

/// The constant acceptance rate at which the best budget of a shape is exactly as fast as plain decoding; `None` when even
/// certain acceptance does not pay, 0 when nothing is to be paid.
///
/// Error: V(n) not measured to 33 rows.
pub fn break_even_alpha(cost: &CostModel, kind: &ShapeKind, max_depth: usize, context: usize) -> Result<Option<f64>, SimError> {
    let plain = cost.price(0, 0)?.seconds(context);
    let pays = |alpha: f64| -> Result<bool, SimError> {
        let model = AcceptanceModel::constant(alpha)?;
        for budget in Budget::all().skip(1) {
            let grown = kind.grow(&model, budget.nodes(), max_depth);
            let seconds = cost.price(grown.shape.drafted(), grown.steps)?.seconds(context);
            if grown.shape.drafted() > 0 && model.tau(&grown.shape) / seconds >= 1.0 / plain {
                return Ok(true);
            }
        }
        Ok(false)
    };
    // Just below certainty, where trees still branch.
    let (mut low, mut high) = (0.0, 1.0 - 1e-9);
    if !pays(high)? {
        return Ok(None);
    }
    for _ in 0..50 {
        let middle = 0.5 * (low + high);
        if pays(middle)? { high = middle } else { low = middle }
    }
    Ok(Some(high))
}

#[cfg(test)]
#[path = "tune_tests.rs"]
mod tests;
