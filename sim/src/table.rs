//! Fits a budget table to a dense trace and a machine: in every cell of (context, recent acceptance) the budget with the most
//! tokens for its time. Improves the table by playing it, since a budget changes which states are seen; what it says of
//! itself is measured on prompts that it was not fitted on.

use crate::{
    CostModel, DrafterSteps, Policy, Replay, Run, SimError, Source, simulate,
    simulate::{Outcome, PromptSums},
};
use serde::Serialize;
use specdec::{Budget, BudgetTable, RawTable, TableMemory};
use std::collections::BTreeMap;

/// A fitted table and what it is worth.
#[derive(Clone, Debug, Serialize)]
pub struct TableFit {
    /// For a file.
    pub table: BudgetTable,
    /// The best single budget on the prompts of the fit.
    pub fixed: Budget,
    /// Tokens per second of that budget on the other prompts.
    pub fixed_tokens_per_s: f64,
    /// Tokens per second of the table on the other prompts.
    pub table_tokens_per_s: f64,
    /// Tokens per second of plain decoding on the other prompts.
    pub plain_tokens_per_s: f64,
}

/// Accepted drafts per round at which cells begin.
const ACCEPTED_EDGES: [f64; 8] = [0.15, 0.3, 0.5, 0.8, 1.2, 1.8, 2.6, 4.0];
/// Context lengths at which rows begin, where the trace has rounds on both sides.
const CONTEXT_EDGES: [usize; 3] = [512, 2048, 8192];
/// A cell seen less often keeps the best single budget.
const LEAST_ROUNDS: usize = 40;
/// Weights of the newest round, and rounds between probes while off, of which the best is kept.
const MEMORIES: [(f64, usize); 6] = [(0.15, 24), (0.15, 8), (0.3, 24), (0.3, 8), (0.5, 8), (0.5, 4)];
/// Plays until the table stops improving; it does after two or three.
const IMPROVEMENTS: usize = 5;

/// Fits on every other prompt of a dense trace, measures on the rest.
///
/// Errors: a trace that is not dense, fewer than 4 prompts, V(n) not measured.
pub fn fit_table(replay: &Replay, steps: DrafterSteps, cost: &CostModel, run: &Run) -> Result<TableFit, SimError> {
    if !replay.is_dense() {
        let reason = "only a dense trace says what other budgets would have met (record with --roots dense)".into();
        return Err(SimError::NotIdentifiable { what: "a budget table", reason });
    }
    let (fit, rest) = (replay.every_other(0), replay.every_other(1));
    if rest.prompts().len() < 2 {
        let reason = format!("{} prompts were recorded, expected at least 4", replay.prompts().len());
        return Err(SimError::NotIdentifiable { what: "a budget table", reason });
    }
    let largest = fit.prompts().iter().flatten().map(|r| r.drafted()).max().unwrap_or(0);
    let speed = |replay: &Replay, policy: &Policy| -> Result<f64, SimError> {
        let outcome: Outcome = simulate(Source::Trace { replay, steps }, cost, policy, run)?;
        Ok(outcome.tokens_per_s)
    };
    let (mut fixed, mut best_speed) = (Budget::OFF, 0.0);
    for budget in Budget::all().filter(|b| b.nodes() <= largest) {
        let reached = speed(&fit, &Policy::Fixed(budget))?;
        // A wider budget must earn it.
        if reached > best_speed * if budget.is_off() { 1.0 } else { 1.005 } {
            (fixed, best_speed) = (budget, reached);
        }
    }
    let contexts: Vec<usize> = fit.prompts().iter().flatten().map(|r| r.context).collect();
    let both_sides = |edge: &usize| {
        let below = contexts.iter().filter(|c| *c < edge).count();
        below.min(contexts.len() - below) >= LEAST_ROUNDS * ACCEPTED_EDGES.len()
    };
    let context_edges: Vec<usize> = CONTEXT_EDGES.into_iter().filter(both_sides).collect();
    let budgets = vec![vec![fixed; ACCEPTED_EDGES.len() + 1]; context_edges.len() + 1];
    let start = |newest: f64, probe_every: usize| {
        let (context_edges, accepted_edges) = (context_edges.clone(), ACCEPTED_EDGES.to_vec());
        let raw = RawTable { context_edges, accepted_edges, budgets: budgets.clone(), newest, start: 1.0, probe_every };
        BudgetTable::new(raw).expect("the edges rise and the sizes agree")
    };
    let mut best = start(MEMORIES[0].0, MEMORIES[0].1);
    for (newest, probe_every) in MEMORIES {
        let mut table = start(newest, probe_every);
        for _ in 0..IMPROVEMENTS {
            table = improved(&fit, steps, cost, &table, fixed, largest)?;
            let reached = speed(&fit, &Policy::Table(table.clone()))?;
            if reached > best_speed {
                (best_speed, best) = (reached, table.clone());
            }
        }
    }
    Ok(TableFit {
        fixed,
        fixed_tokens_per_s: speed(&rest, &Policy::Fixed(fixed))?,
        table_tokens_per_s: speed(&rest, &Policy::Table(best.clone()))?,
        plain_tokens_per_s: speed(&rest, &Policy::Fixed(Budget::OFF))?,
        table: best,
    })
}

/// One play of the table; then every cell takes the budget with the largest `tokens - rate * seconds` over the rounds it met,
/// where `rate` is the tokens per second that the play reached.
fn improved(
    replay: &Replay,
    steps: DrafterSteps,
    cost: &CostModel,
    table: &BudgetTable,
    fixed: Budget,
    largest: usize,
) -> Result<BudgetTable, SimError> {
    let budgets: Vec<Budget> = Budget::all().filter(|b| b.nodes() <= largest).collect();
    let prices: Result<Vec<_>, SimError> = (0..=largest).map(|n| cost.price(n, steps.of(n))).collect();
    let prices = prices?;
    let mut cells: BTreeMap<(usize, usize), (usize, Vec<PromptSums>)> = BTreeMap::new();
    let mut whole = PromptSums::default();
    for rounds in replay.prompts() {
        let mut memory = TableMemory::new(table);
        let mut at = 0;
        while let Some(round) = rounds.get(at) {
            let left = rounds.len() - at - 1;
            let outcome = |budget: Budget| {
                let accepted = round.accepted(budget.nodes()).min(left);
                (accepted, prices[budget.nodes().min(round.drafted())].seconds(round.context))
            };
            let cell = cells.entry(memory.cell(round.context)).or_insert((0, vec![PromptSums::default(); budgets.len()]));
            cell.0 += 1;
            for (sums, &budget) in cell.1.iter_mut().zip(&budgets) {
                let (accepted, seconds) = outcome(budget);
                sums.tokens += accepted as f64 + 1.0;
                sums.seconds += seconds;
            }
            let budget = memory.choose(round.context);
            let (accepted, seconds) = outcome(budget);
            memory.observe(budget, accepted as f64);
            whole.tokens += accepted as f64 + 1.0;
            whole.seconds += seconds;
            at += accepted + 1;
        }
    }
    let rate = whole.tokens / whole.seconds;
    let mut raw = table.raw().clone();
    for (row, columns) in raw.budgets.iter_mut().enumerate() {
        for (column, budget) in columns.iter_mut().enumerate() {
            let Some((_, sums)) = cells.get(&(row, column)).filter(|c| c.0 >= LEAST_ROUNDS) else {
                *budget = fixed;
                continue;
            };
            let score = |i: usize| sums[i].tokens - rate * sums[i].seconds;
            let best = (0..budgets.len()).rev().max_by(|&a, &b| score(a).total_cmp(&score(b))).unwrap_or(0);
            *budget = budgets[best];
        }
    }
    Ok(BudgetTable::new(raw).expect("only budgets changed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AcceptanceModel, Law, ShapeKind, Staircase, SyntheticTrace};
    use std::num::NonZeroUsize;

    fn run() -> Run {
        Run { prompts: 1, rounds_per_prompt: 1, context: 0, seed: 1, repetition: 0, threads: NonZeroUsize::MIN }
    }

    /// Passes of 1 ms and 0.1 ms per row.
    fn cost() -> CostModel {
        let points = (1..=33).map(|n| (n, 1e-3 + 1e-4 * (n - 1) as f64)).collect();
        CostModel::from_table(Staircase { name: "t".into(), points, steps: Some(vec![]) }).unwrap()
    }

    fn replay(law: Law, tokens: usize) -> Replay {
        let model = AcceptanceModel::new(law).unwrap();
        let shape = ShapeKind::Chain.grow(&model, 32, 32).shape;
        let trace = SyntheticTrace { model: &model, shape: &shape, prompts: 24, tokens, dense: true, seed: 4 }.draw().unwrap();
        Replay::new(&trace, &ShapeKind::Chain, 32).unwrap()
    }

    #[test]
    fn spans_are_worth_a_table_and_a_constant_is_not() {
        let spans = Law::Markov { alpha: [0.95, 0.1], leave: [1.0 / 150.0, 1.0 / 150.0] };
        let fit = fit_table(&replay(spans, 1500), DrafterSteps::Block, &cost(), &run()).unwrap();
        assert!(fit.table_tokens_per_s > 1.05 * fit.fixed_tokens_per_s, "{fit:?}");
        let columns = &fit.table.raw().budgets[0];
        assert!(columns[columns.len() - 1] > columns[0], "{columns:?}");
        let flat = fit_table(&replay(Law::Constant { alpha: 0.7 }, 800), DrafterSteps::Block, &cost(), &run()).unwrap();
        let ratio = flat.table_tokens_per_s / flat.fixed_tokens_per_s;
        assert!((0.97..1.03).contains(&ratio), "{ratio}");
    }

    #[test]
    fn sparse_and_small_traces_are_refused_with_a_sentence() {
        let sparse = replay(Law::Constant { alpha: 0.7 }, 20).in_context(0..99);
        let error = fit_table(&sparse, DrafterSteps::Block, &cost(), &run()).unwrap_err().to_string();
        assert!(error.contains("record with --roots dense"), "{error}");
    }
}
