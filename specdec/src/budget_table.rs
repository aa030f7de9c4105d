//! A tuned rule for the budget of the next round: a table over context length and recently accepted drafts. The tuner fits and
//! plays it, the engine decodes by it, both through [`TableMemory`]. Changes speed only.

use crate::Budget;
use serde::{Deserialize, Serialize};

/// A checked table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawTable", into = "RawTable")]
pub struct BudgetTable(RawTable);

/// The table as files have it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawTable {
    /// Context lengths (tokens before the root) at which the next row begins, rising; one less than rows.
    pub context_edges: Vec<usize>,
    /// Smoothed accepted drafts per round (bonus excluded) at which the next column begins, rising; one less than columns.
    pub accepted_edges: Vec<f64>,
    /// `[context band][acceptance band]`.
    pub budgets: Vec<Vec<Budget>>,
    /// Weight of the newest speculative round in the smoothed count, above 0 and at most 1.
    pub newest: f64,
    /// Smoothed count before the first round.
    pub start: f64,
    /// While off, every so many rounds the smallest budget is tried; 0 never tries again.
    pub probe_every: usize,
}

/// Why a table was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("budget table: {0} (make a table with straw tune)")]
pub struct TableError(&'static str);

impl BudgetTable {
    /// Checks sizes, order and weights. Error: the first that cannot work.
    pub fn new(table: RawTable) -> Result<Self, TableError> {
        let t = &table;
        let rows = t.budgets.len() == t.context_edges.len() + 1;
        let problem = if !rows || t.budgets.iter().any(|row| row.len() != t.accepted_edges.len() + 1) {
            Some("rows must be one more than context edges, columns one more than acceptance edges")
        } else if t.context_edges.windows(2).any(|w| w[0] >= w[1]) || !t.accepted_edges.windows(2).all(|w| w[0] < w[1]) {
            Some("edges must rise")
        } else if !(t.newest > 0.0 && t.newest <= 1.0) {
            Some("the weight of the newest round must be above 0 and at most 1")
        } else if !(t.start.is_finite() && t.start >= 0.0) {
            Some("the count before the first round must be at least 0")
        } else {
            None
        };
        problem.map_or(Ok(Self(table.clone())), |p| Err(TableError(p)))
    }

    /// The fields.
    pub fn raw(&self) -> &RawTable {
        &self.0
    }

    /// The largest budget of any cell, and at least the smallest that a probe drafts.
    pub fn largest(&self) -> usize {
        self.0.budgets.iter().flatten().map(|b| b.nodes()).fold(Budget::MIN, usize::max)
    }

    /// Row and column of a state.
    pub fn cell(&self, context: usize, accepted: f64) -> (usize, usize) {
        let row = self.0.context_edges.iter().filter(|&&e| context >= e).count();
        let column = self.0.accepted_edges.iter().filter(|&&e| accepted >= e).count();
        (row, column)
    }
}

/// A table's memory of one answer.
#[derive(Clone, Debug)]
pub struct TableMemory<'a> {
    table: &'a BudgetTable,
    smoothed: f64,
    rounds_off: usize,
}

impl<'a> TableMemory<'a> {
    /// Before the first round.
    pub fn new(table: &'a BudgetTable) -> Self {
        Self { table, smoothed: table.0.start, rounds_off: 0 }
    }

    /// Row and column that speak now.
    pub fn cell(&self, context: usize) -> (usize, usize) {
        self.table.cell(context, self.smoothed)
    }

    /// The budget of the round whose root has `context` tokens before it.
    pub fn choose(&self, context: usize) -> Budget {
        let (row, column) = self.cell(context);
        let (budget, every) = (self.table.0.budgets[row][column], self.table.0.probe_every);
        let due = budget.is_off() && every > 0 && self.rounds_off >= every;
        if due { Budget::new(Budget::MIN).unwrap_or(Budget::OFF) } else { budget }
    }

    /// Learns from a round of `budget` that accepted so many drafts; the bonus token is not one.
    pub fn observe(&mut self, budget: Budget, accepted: f64) {
        if budget.is_off() {
            self.rounds_off += 1;
        } else {
            self.rounds_off = 0;
            self.smoothed += self.table.0.newest * (accepted - self.smoothed);
        }
    }
}

impl TryFrom<RawTable> for BudgetTable {
    type Error = TableError;
    fn try_from(table: RawTable) -> Result<Self, TableError> {
        Self::new(table)
    }
}

impl From<BudgetTable> for RawTable {
    fn from(table: BudgetTable) -> RawTable {
        table.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> RawTable {
        let b = |n| Budget::new(n).unwrap();
        RawTable {
            context_edges: vec![100],
            accepted_edges: vec![1.0],
            budgets: vec![vec![b(0), b(8)], vec![b(0), b(3)]],
            newest: 0.5,
            start: 2.0,
            probe_every: 4,
        }
    }

    #[test]
    fn context_and_acceptance_choose_and_silence_is_probed() {
        let table = BudgetTable::new(raw()).unwrap();
        let mut memory = TableMemory::new(&table);
        assert_eq!((memory.choose(99).nodes(), memory.choose(100).nodes()), (8, 3));
        (0..2).for_each(|_| memory.observe(memory.choose(0), 0.0));
        let budgets: Vec<usize> = (0..6)
            .map(|_| {
                let budget = memory.choose(0);
                memory.observe(budget, 0.0);
                budget.nodes()
            })
            .collect();
        assert_eq!(budgets, [0, 0, 0, 0, 3, 0]);
        memory.observe(Budget::new(3).unwrap(), 3.0);
        assert_eq!(memory.choose(0).nodes(), 8);
    }

    #[test]
    fn tables_that_cannot_work_are_refused_in_files_too() {
        for bad in [
            RawTable { context_edges: vec![], ..raw() },
            RawTable { context_edges: vec![100, 50], budgets: vec![raw().budgets[0].clone(); 3], ..raw() },
            RawTable { accepted_edges: vec![f64::NAN, 1.0], ..raw() },
            RawTable { newest: 0.0, ..raw() },
            RawTable { start: -1.0, ..raw() },
        ] {
            assert!(BudgetTable::new(bad).is_err());
        }
        let text = serde_json::to_string(&BudgetTable::new(raw()).unwrap()).unwrap();
        assert_eq!(serde_json::from_str::<BudgetTable>(&text).unwrap().raw(), &raw());
        assert!(serde_json::from_str::<BudgetTable>(&text.replace("0.5", "7.5")).is_err());
    }
}
