//! Draft and round costs from timed rounds: least squares on what is left of a round after V(n), with standard errors.
//! Knows V(n) from a measurement of its own; a constant that the data cannot tell from a step is refused.

use crate::{CostModel, DraftCost, SimError};
use serde::Serialize;
use specdec::RoundRecord;

/// One timed speculative round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedRound {
    /// Drafted nodes, at least 1.
    pub drafted: usize,
    /// Drafter steps.
    pub steps: usize,
    /// Tokens before the root.
    pub context: usize,
    /// Seconds of the whole round.
    pub seconds: f64,
}

impl TimedRound {
    /// A recorded round of an engine, with the drafter steps it took.
    pub fn new(record: &RoundRecord, steps: usize) -> Self {
        let (drafted, seconds) = (record.tree.drafted(), record.times.total_s());
        Self { drafted, steps, context: record.position as usize, seconds }
    }
}

/// A fitted number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// Estimate.
    pub value: f64,
    /// Standard error.
    pub error: f64,
}

/// What a round costs beyond V(n). A drafter's pass and the round's own constant appear once per round alike, so only their
/// sum can be known from totals.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CostFit {
    /// Seconds per speculative round: drafter pass and round constant.
    pub round_s: Fitted,
    /// Seconds per drafter step; absent when steps never vary.
    pub step_s: Option<Fitted>,
    /// Root mean square of what the fit leaves over, seconds.
    pub residual_s: f64,
    /// Rounds used.
    pub rounds: usize,
}

/// Fits `seconds - V(drafted + 1) - context terms = round_s + step_s * steps`. `known` gives V and context terms; its draft and
/// round costs are ignored.
///
/// Errors: fewer than 3 rounds, a plain round among them, V(n) not measured.
pub fn fit_round_costs(rounds: &[TimedRound], known: &CostModel) -> Result<CostFit, SimError> {
    if rounds.len() < 3 {
        let reason = format!("{} rounds were timed, expected at least 3", rounds.len());
        return Err(SimError::NotIdentifiable { what: "the cost of a round", reason });
    }
    if rounds.iter().any(|r| r.drafted == 0) {
        let reason = "a round without drafts has no draft cost (leave plain rounds out)".into();
        return Err(SimError::NotIdentifiable { what: "the cost of a round", reason });
    }
    let base = CostModel { draft: DraftCost::default(), round_s: 0.0, switch_s: 0.0, ..known.clone() };
    let left: Result<Vec<f64>, SimError> =
        rounds.iter().map(|r| Ok(r.seconds - base.price(r.drafted, 0)?.seconds(r.context))).collect();
    let left = left?;
    let n = rounds.len() as f64;
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / n;
    let x_mean = mean(&mut rounds.iter().map(|r| r.steps as f64));
    let y_mean = mean(&mut left.iter().copied());
    let sxx: f64 = rounds.iter().map(|r| (r.steps as f64 - x_mean).powi(2)).sum();
    let sxy: f64 = rounds.iter().zip(&left).map(|(r, y)| (r.steps as f64 - x_mean) * (y - y_mean)).sum();
    let slope = if sxx > 0.0 { sxy / sxx } else { 0.0 };
    let start = y_mean - slope * x_mean;
    let square: f64 = rounds.iter().zip(&left).map(|(r, y)| (y - start - slope * r.steps as f64).powi(2)).sum();
    let variance = square / (n - if sxx > 0.0 { 2.0 } else { 1.0 });
    let lever = if sxx > 0.0 { x_mean * x_mean / sxx } else { 0.0 };
    Ok(CostFit {
        round_s: Fitted { value: start, error: (variance * (1.0 / n + lever)).sqrt() },
        step_s: (sxx > 0.0).then(|| Fitted { value: slope, error: (variance / sxx).sqrt() }),
        residual_s: (square / n).sqrt(),
        rounds: rounds.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Staircase,
        randomness::{stream, uniform},
    };

    fn known() -> CostModel {
        let points = (1..=33).map(|rows: usize| (rows, 0.03 + 0.01 * (rows.div_ceil(8) - 1) as f64)).collect();
        let mut cost = CostModel::from_table(Staircase { name: "k".into(), points, steps: None }).unwrap();
        cost.context.token_s = 1e-6;
        cost.round_s = 99.0;
        cost
    }

    fn rounds(noise_s: f64, steps: impl Fn(usize) -> usize) -> Vec<TimedRound> {
        let mut rng = stream(1, 0, 0);
        (0..400)
            .map(|i| {
                let (drafted, context) = (3 + i % 30, 10 * i);
                let v = known().verify_s(drafted + 1).unwrap() + 1e-6 * context as f64;
                let noise = noise_s * (uniform(&mut rng) + uniform(&mut rng) - 1.0);
                let steps = steps(drafted);
                TimedRound { drafted, steps, context, seconds: v + 0.004 + 0.0015 * steps as f64 + noise }
            })
            .collect()
    }

    #[test]
    fn a_constant_per_round_is_recovered() {
        let exact = fit_round_costs(&rounds(0.0, |n| n), &known()).unwrap();
        assert!((exact.round_s.value - 0.004).abs() < 1e-12 && (exact.step_s.unwrap().value - 0.0015).abs() < 1e-12);
        let noisy = fit_round_costs(&rounds(0.003, |n| n), &known()).unwrap();
        let step = noisy.step_s.unwrap();
        assert!((noisy.round_s.value - 0.004).abs() < 4.0 * noisy.round_s.error, "{noisy:?}");
        assert!((step.value - 0.0015).abs() < 4.0 * step.error && noisy.round_s.error < 4e-4);
        // Triangular noise of half width 3 ms has a root mean square of 3 / sqrt(6) ms.
        assert!((noisy.residual_s - 0.003 / 6f64.sqrt()).abs() < 1e-4);
    }

    #[test]
    fn engine_records_become_timed_rounds() {
        use specdec::{Acceptance, Budget, DraftTree, StageTimes};
        let record = RoundRecord {
            position: 120,
            budget: Budget::new(3).unwrap(),
            tree: DraftTree::chain(1, &[(2, -0.1), (3, -0.2)]).unwrap(),
            acceptance: Acceptance { path: vec![1], next_token: 5 },
            emitted: 2,
            times: StageTimes { draft_s: 0.5, verify_s: 1.0, ..Default::default() },
        };
        assert_eq!(TimedRound::new(&record, 2), TimedRound { drafted: 2, steps: 2, context: 120, seconds: 1.5 });
    }

    #[test]
    fn a_block_drafter_has_a_constant_only() {
        let fit = fit_round_costs(&rounds(0.0, |_| 0), &known()).unwrap();
        assert!((fit.round_s.value - 0.004).abs() < 1e-12 && fit.step_s.is_none());
    }

    #[test]
    fn data_that_cannot_tell_is_refused() {
        assert!(fit_round_costs(&[], &known()).unwrap_err().to_string().contains("0 rounds were timed"));
        let plain = TimedRound { drafted: 0, steps: 0, context: 0, seconds: 0.03 };
        assert!(fit_round_costs(&[plain; 3], &known()).unwrap_err().to_string().contains("leave plain rounds out"));
        let wide = TimedRound { drafted: 40, steps: 0, context: 0, seconds: 0.1 };
        assert!(matches!(fit_round_costs(&[wide; 3], &known()), Err(SimError::Unmeasured { .. })));
    }
}
