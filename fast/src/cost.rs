//! What one pass costs on this machine: a plain pass, a verification at each width, a draft at several budgets. Medians of
//! interleaved runs, so that a slow moment hits all alike. Measures speed only; nothing here can change a token.

use crate::FastError;
use crate::candidates::Proposer;
use crate::drafter::Root;
use crate::engine::Parts;
use crate::history::History;
use crate::model::TREE_ROWS;
use crate::session::Session;
use serde::{Deserialize, Serialize};
use specdec::{Budget, DraftTree, DrafterKind, SamplingParams};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Budgets at which drafting is timed; between them it is interpolated.
const DRAFT_BUDGETS: [usize; 4] = [3, 8, 16, 32];
/// Widths that a calibration times; a full measurement times all.
const CALIBRATION_WIDTHS: [usize; 9] = [1, 2, 4, 6, 9, 13, 17, 25, 33];
/// Committed tokens below the timed passes.
const SHORT_CONTEXT: usize = 64;
/// A second context, to see what length costs.
const LONG_CONTEXT: usize = 1024;
/// A calibration ends after this long, whatever it has: large models must not wait for statistics.
const CALIBRATION_LIMIT: Duration = Duration::from_millis(400);

/// How much time a measurement may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effort {
    /// A few widths, a few repetitions.
    Calibration,
    /// All widths.
    Full { repetitions: usize },
}

/// Seconds per pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostReport {
    /// Threads that computed.
    pub threads: usize,
    /// Committed tokens below the timed passes.
    pub context: usize,
    /// Interleaved runs behind each median.
    pub repetitions: usize,
    /// A plain pass: one row that becomes part of the state.
    pub plain_s: f64,
    /// `[n - 1]`: a verification of `n` rows, root included. 33 entries.
    pub verify_s: Vec<f64>,
    /// Committing a path of four rows.
    pub commit_s: f64,
    /// What one row costs more for every further token of context.
    pub row_per_context_s: f64,
    /// Drafting, by drafter.
    pub drafts: Vec<DraftCost>,
}

/// Seconds one drafter takes for a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DraftCost {
    /// Who.
    pub drafter: DrafterKind,
    /// `(budget, seconds)`, rising budgets; the drafter's pass and the choice of nodes.
    pub by_budget: Vec<(usize, f64)>,
}

impl CostReport {
    /// Seconds of a round with this budget whose root stands at `position`.
    pub(crate) fn round_s(&self, drafter: DrafterKind, budget: Budget, position: u64) -> f64 {
        let context = (position as f64 - self.context as f64).max(0.0) * self.row_per_context_s;
        if budget.is_off() {
            return self.plain_s + context;
        }
        let rows = budget.rows();
        let draft = self.drafts.iter().find(|d| d.drafter == drafter).map_or(0.0, |d| d.at(budget.nodes()));
        self.verify_s[rows - 1] + self.commit_s + rows as f64 * context + draft
    }

    /// A made-up machine: every row beyond the first costs `row_s`, every draft `draft_s`.
    #[cfg(test)]
    pub(crate) fn flat(plain_s: f64, row_s: f64, draft_s: f64) -> Self {
        Self {
            threads: 1,
            context: SHORT_CONTEXT,
            repetitions: 1,
            plain_s,
            verify_s: (0..TREE_ROWS).map(|n| plain_s + row_s * n as f64).collect(),
            commit_s: 0.0,
            row_per_context_s: 0.0,
            drafts: vec![DraftCost { drafter: DrafterKind::Dflash, by_budget: vec![(3, draft_s), (32, draft_s)] }],
        }
    }
}

impl DraftCost {
    /// Linear between the timed budgets.
    fn at(&self, budget: usize) -> f64 {
        interpolate(&self.by_budget, budget)
    }
}

/// Measures everything of [`CostReport`].
pub(crate) fn measure(parts: &Arc<Parts>, effort: Effort) -> Result<CostReport, FastError> {
    let (widths, repetitions, limit) = match effort {
        Effort::Calibration => (CALIBRATION_WIDTHS.to_vec(), 5, CALIBRATION_LIMIT),
        Effort::Full { repetitions } => ((1..=TREE_ROWS).collect(), repetitions.max(1), Duration::MAX),
    };
    let room = parts.model.config.max_positions;
    let context = SHORT_CONTEXT.min(room / 2);
    let mut timers = Timers::new(parts, &widths, context)?;
    let start = Instant::now();
    let mut done = 0;
    while done == 0 || (done < repetitions && start.elapsed() < limit) {
        timers.run(parts)?;
        done += 1;
    }
    let plain_s = median(&mut timers.plain);
    let mut report = CostReport {
        threads: parts.backend.pool().threads(),
        context,
        repetitions: done,
        plain_s,
        verify_s: vec![],
        commit_s: median(&mut timers.commit),
        row_per_context_s: 0.0,
        drafts: vec![],
    };
    let verify: Vec<(usize, f64)> = timers.verify.iter_mut().map(|(n, t)| (*n, median(t))).collect();
    report.verify_s = (1..=TREE_ROWS).map(|n| interpolate(&verify, n)).collect();
    for DraftTimes { drafter, by_budget } in &mut timers.drafts {
        let by_budget = by_budget.iter_mut().map(|(budget, t)| (*budget, median(t))).collect();
        report.drafts.push(DraftCost { drafter: *drafter, by_budget });
    }
    let long = LONG_CONTEXT.min(room - TREE_ROWS - 1);
    if matches!(effort, Effort::Full { .. }) && long > 2 * context {
        report.row_per_context_s = context_slope(parts, (context, long), repetitions)?;
    }
    Ok(report)
}

/// A drafter's times so far, by budget.
struct DraftTimes {
    drafter: DrafterKind,
    by_budget: Vec<(usize, Vec<f64>)>,
}

/// Sessions to time, and the times so far.
struct Timers {
    plain: Vec<f64>,
    commit: Vec<f64>,
    verify: Vec<(usize, Vec<f64>)>,
    drafts: Vec<DraftTimes>,
    prompt: Vec<u32>,
    bare: Session,
}

impl Timers {
    fn new(parts: &Arc<Parts>, widths: &[usize], context: usize) -> Result<Self, FastError> {
        let vocab = parts.model.config.vocab_size as u32;
        let prompt: Vec<u32> = (0..context as u32).map(|i| (7 + 13 * i) % vocab).collect();
        let mut bare = Session::new(parts.clone(), DrafterKind::Off, context + TREE_ROWS);
        bare.prefill(&prompt)?;
        let drafters = parts.drafters().into_iter().filter(|&k| k != DrafterKind::Off);
        let budgets = || DRAFT_BUDGETS.iter().map(|&b| (b, vec![])).collect();
        Ok(Self {
            plain: vec![],
            commit: vec![],
            verify: widths.iter().map(|&n| (n, vec![])).collect(),
            drafts: drafters.map(|drafter| DraftTimes { drafter, by_budget: budgets() }).collect(),
            prompt,
            bare,
        })
    }

    fn run(&mut self, parts: &Arc<Parts>) -> Result<(), FastError> {
        for (rows, times) in &mut self.verify {
            let tree = chain(*rows);
            times.push(timed(|| self.bare.verify(&tree).map(|_| ()))?);
        }
        let room = self.prompt.len() + 8 + TREE_ROWS;
        let mut fresh = Session::new(parts.clone(), DrafterKind::Off, room);
        fresh.prefill(&self.prompt)?;
        for token in 0..4 {
            self.plain.push(timed(|| fresh.prefill(&[token]).map(|_| ()))?);
        }
        fresh.verify(&chain(4))?;
        self.commit.push(timed(|| fresh.commit(&[0, 1, 2, 3]))?);
        let config = &parts.model.config;
        for DraftTimes { drafter, by_budget } in &mut self.drafts {
            let mut session = Session::new(parts.clone(), *drafter, room);
            let mut proposer = Proposer::new(&SamplingParams::greedy(), config.vocab_size, parts.mask_token(*drafter));
            let history = History::new(&self.prompt, config.vocab_size);
            session.prefill(&self.prompt)?;
            let mut token = self.prompt[0];
            for (budget, times) in by_budget {
                let position = session.len() as u64;
                let root = Root { token, position, budget: *budget, depth: *budget };
                let clock = Instant::now();
                let proposal = session.drafter().propose(parts, &mut proposer, &history, root);
                let built = session.drafter().build(parts, &proposer, &proposal, root);
                times.push(clock.elapsed().as_secs_f64());
                drop(built);
                session.prefill(&[token])?;
                token = self.prompt[session.len() % self.prompt.len()];
            }
        }
        Ok(())
    }
}

/// Seconds that one row costs more per token of context, from plain passes at two lengths.
fn context_slope(parts: &Arc<Parts>, (short, long): (usize, usize), repetitions: usize) -> Result<f64, FastError> {
    let mut sessions = Vec::new();
    for context in [short, long] {
        let mut session = Session::new(parts.clone(), DrafterKind::Off, long + TREE_ROWS + 1);
        session.prefill(&vec![1; context])?;
        sessions.push((session, vec![]));
    }
    let tree = chain(1);
    for _ in 0..2 * repetitions {
        for (session, times) in &mut sessions {
            times.push(timed(|| session.verify(&tree).map(|_| ()))?);
        }
    }
    let medians: Vec<f64> = sessions.iter_mut().map(|(_, times)| median(times)).collect();
    Ok(((medians[1] - medians[0]) / (long - short) as f64).max(0.0))
}

fn timed(run: impl FnOnce() -> Result<(), FastError>) -> Result<f64, FastError> {
    let clock = Instant::now();
    run()?;
    Ok(clock.elapsed().as_secs_f64())
}

/// A chain of `rows` rows of token 1.
fn chain(rows: usize) -> DraftTree {
    DraftTree::chain(1, &vec![(1, 0.0); rows - 1]).expect("a chain of log-probability 0 is a tree")
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Linear between known points, constant outside them.
fn interpolate(points: &[(usize, f64)], at: usize) -> f64 {
    let after = points.iter().position(|p| p.0 >= at);
    match after {
        None => points.last().map_or(0.0, |p| p.1),
        Some(0) => points[0].1,
        Some(i) => {
            let ((x0, y0), (x1, y1)) = (points[i - 1], points[i]);
            y0 + (y1 - y0) * (at - x0) as f64 / (x1 - x0) as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_between_measured_widths_are_linear() {
        let points = [(3, 1.0), (5, 2.0), (9, 2.0)];
        let at = |x| interpolate(&points, x);
        assert_eq!([at(1), at(3), at(4), at(5), at(7), at(33)], [1.0, 1.0, 1.5, 2.0, 2.0, 2.0]);
    }

    #[test]
    fn context_makes_wide_rounds_dearer_than_plain_ones() {
        let mut cost = CostReport::flat(1e-3, 0.0, 0.0);
        cost.row_per_context_s = 1e-7;
        let wide = Budget::new(16).unwrap();
        let grown = |budget| cost.round_s(DrafterKind::Dflash, budget, 2064) - cost.round_s(DrafterKind::Dflash, budget, 64);
        assert!((grown(Budget::OFF) - 2e-4).abs() < 1e-12);
        assert!((grown(wide) - 17.0 * 2e-4).abs() < 1e-12);
    }
}
