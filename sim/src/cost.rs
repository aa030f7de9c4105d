//! Seconds of a round: verification of its rows, drafting, a constant per speculative round, terms that grow with context.
//! A verification curve is a staircase (tiles), so a table never smooths a step away. Knows no acceptance.

use crate::{
    SimError,
    error::{nonnegative, positive},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Measured seconds of a verification pass by rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Staircase {
    /// What was measured, where.
    pub name: String,
    /// `(rows, seconds)`, rows rising from 1 (root alone: a plain pass).
    pub points: Vec<(usize, f64)>,
    /// Row counts at which a new tile begins. Between two measured points without a step the curve is a line; with a step it
    /// keeps the left value below the step and takes the right value from the step on. Absent: where the steps are is
    /// unknown, and an unmeasured count costs as much as the next measured one.
    #[serde(default)]
    pub steps: Option<Vec<usize>>,
}

impl Staircase {
    /// Medians of repeated passes, `(rows, seconds)` in any order. Where steps lie between measured counts stays unknown.
    ///
    /// Errors: as [`checked`](Self::checked).
    pub fn measured(name: &str, passes: &[(usize, f64)]) -> Result<Self, SimError> {
        let mut by_rows: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        passes.iter().for_each(|&(rows, seconds)| by_rows.entry(rows).or_default().push(seconds));
        let median = |mut seconds: Vec<f64>| {
            seconds.sort_by(f64::total_cmp);
            0.5 * (seconds[(seconds.len() - 1) / 2] + seconds[seconds.len() / 2])
        };
        let points = by_rows.into_iter().map(|(rows, seconds)| (rows, median(seconds))).collect();
        Self { name: name.into(), points, steps: None }.checked()
    }

    /// Checks order and values. Errors: no point for one row, rows that do not rise, seconds that are not above zero.
    pub fn checked(self) -> Result<Self, SimError> {
        let error = |reason: String| SimError::Table { name: self.name.clone(), reason };
        match self.points.first() {
            Some(&(1, _)) => {}
            first => {
                return Err(error(format!("first point is {first:?}, expected one row (measure the plain pass)")));
            }
        }
        if let Some(pair) = self.points.windows(2).find(|w| w[0].0 >= w[1].0) {
            return Err(error(format!("{} rows are followed by {}, expected rising rows", pair[0].0, pair[1].0)));
        }
        if let Some(point) = self.points.iter().find(|p| !(p.1.is_finite() && p.1 > 0.0)) {
            return Err(error(format!("{} rows take {} s, expected a time above 0", point.0, point.1)));
        }
        Ok(self)
    }

    /// Seconds of a pass over `rows` rows. Error: more rows than measured.
    pub fn seconds(&self, rows: usize) -> Result<f64, SimError> {
        let right = self.points.iter().position(|p| p.0 >= rows).ok_or_else(|| SimError::Unmeasured {
            name: self.name.clone(),
            rows,
            largest: self.points.last().map_or(0, |p| p.0),
        })?;
        let (r1, t1) = self.points[right];
        if r1 == rows || right == 0 {
            return Ok(t1);
        }
        let (r0, t0) = self.points[right - 1];
        let Some(steps) = &self.steps else { return Ok(t1) };
        // Of several steps inside one interval the heights between are unknown: from the first on, the right value is paid.
        Ok(match steps.iter().filter(|&&s| r0 < s && s <= r1).min() {
            Some(&step) if rows < step => t0,
            Some(_) => t1,
            None => t0 + (t1 - t0) * (rows - r0) as f64 / (r1 - r0) as f64,
        })
    }
}

/// A pass by its arithmetic: bytes read once, multiplications by rows in tiles, whichever takes longer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roofline {
    /// Bytes of weights a pass reads, LM head excluded.
    pub weight_bytes: f64,
    /// Weights a row multiplies, LM head excluded.
    pub weights: f64,
    /// Bytes of the LM head.
    pub head_bytes: f64,
    /// Weights of the LM head.
    pub head_weights: f64,
    /// Bytes per second that reading reaches.
    pub bytes_per_s: f64,
    /// Multiply-adds per second in the format used (int8 or fp16): half the published operations.
    pub macs_per_s: f64,
    /// Rows are computed in multiples of this; 1 has no tiles.
    pub row_tile: usize,
    /// Seconds that do not depend on rows: launches, norms, sampling.
    pub fixed_s: f64,
}

impl Roofline {
    fn seconds(&self, rows: usize) -> f64 {
        let tiled = (rows.div_ceil(self.row_tile) * self.row_tile) as f64;
        let part = |bytes: f64, weights: f64| (bytes / self.bytes_per_s).max(tiled * weights / self.macs_per_s);
        part(self.weight_bytes, self.weights) + part(self.head_bytes, self.head_weights) + self.fixed_s
    }

    fn checked(self) -> Result<Self, SimError> {
        nonnegative("weight bytes", self.weight_bytes)?;
        nonnegative("weights", self.weights)?;
        nonnegative("head bytes", self.head_bytes)?;
        nonnegative("head weights", self.head_weights)?;
        positive("bytes per second", self.bytes_per_s)?;
        positive("multiply-adds per second", self.macs_per_s)?;
        positive("row tile", self.row_tile as f64)?;
        nonnegative("fixed seconds of a pass", self.fixed_s)?;
        Ok(self)
    }
}

/// How a verification pass is priced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyCost {
    /// Measured.
    Table(Staircase),
    /// Computed.
    Roofline(Roofline),
}

/// Seconds of drafting. An MTP chain has steps only; DFlash a pass only; Weaver a pass and a step per frontier batch. A measured
/// drafter has a table instead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DraftCost {
    /// Once per speculative round.
    pub pass_s: f64,
    /// Per sequential drafter step.
    pub step_s: f64,
    /// Per drafted node (building the tree, tables of the pass).
    pub node_s: f64,
    /// Measured `(drafted nodes, seconds)`, rising nodes, added to the above; a line between points, constant outside.
    pub by_nodes: Vec<(usize, f64)>,
}

impl DraftCost {
    /// Seconds of drafting so many nodes in so many steps.
    pub fn seconds(&self, nodes: usize, steps: usize) -> f64 {
        let points = &self.by_nodes;
        let measured = match points.iter().position(|p| p.0 >= nodes) {
            None => points.last().map_or(0.0, |p| p.1),
            Some(0) => points[0].1,
            Some(i) => {
                let ((n0, s0), (n1, s1)) = (points[i - 1], points[i]);
                s0 + (s1 - s0) * (nodes - n0) as f64 / (n1 - n0) as f64
            }
        };
        self.pass_s + steps as f64 * self.step_s + nodes as f64 * self.node_s + measured
    }

    fn check(&self) -> Result<(), SimError> {
        for (what, value) in [("draft pass", self.pass_s), ("draft step", self.step_s), ("drafted node", self.node_s)] {
            nonnegative(&format!("seconds per {what}"), value)?;
        }
        if let Some(pair) = self.by_nodes.windows(2).find(|w| w[0].0 >= w[1].0) {
            let reason = format!("drafting of {} nodes is followed by {}, expected rising nodes", pair[0].0, pair[1].0);
            return Err(SimError::Table { name: "draft cost".into(), reason });
        }
        self.by_nodes.iter().try_for_each(|p| nonnegative(&format!("seconds of drafting {} nodes", p.0), p.1).map(|_| ()))
    }
}

/// Terms that grow with the tokens already in the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ContextCost {
    /// Per context token and pass: reading keys and values.
    pub token_s: f64,
    /// Per context token and verified row: attention arithmetic.
    pub row_token_s: f64,
    /// Per context token and speculative round: the drafter's own attention.
    pub draft_token_s: f64,
}

/// Everything a round costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// V(n).
    pub verify: VerifyCost,
    /// Drafting.
    #[serde(default)]
    pub draft: DraftCost,
    /// Drafting by drafter, for files that know several; see [`for_drafter`](Self::for_drafter).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drafters: BTreeMap<String, DraftCost>,
    /// Per speculative round, whatever its size: synchronisation, commit. Never part of a plain pass.
    #[serde(default)]
    pub round_s: f64,
    /// Each change of budget: another graph, another kernel.
    #[serde(default)]
    pub switch_s: f64,
    /// Growth with context.
    #[serde(default)]
    pub context: ContextCost,
}

impl CostModel {
    /// Checks every number. Error: the first that is negative, not finite or out of order.
    pub fn checked(self) -> Result<Self, SimError> {
        let verify = match self.verify {
            VerifyCost::Table(t) => VerifyCost::Table(t.checked()?),
            VerifyCost::Roofline(r) => VerifyCost::Roofline(r.checked()?),
        };
        for (what, value) in [
            ("round constant", self.round_s),
            ("switch of budget", self.switch_s),
            ("context token", self.context.token_s),
            ("context token and row", self.context.row_token_s),
            ("context token of the drafter", self.context.draft_token_s),
        ] {
            nonnegative(&format!("seconds per {what}"), value)?;
        }
        std::iter::once(&self.draft).chain(self.drafters.values()).try_for_each(DraftCost::check)?;
        Ok(Self { verify, ..self })
    }

    /// The same machine with this drafter's cost. Error: the file knows drafters, but not this one.
    pub fn for_drafter(&self, name: &str) -> Result<Self, SimError> {
        match self.drafters.get(name) {
            Some(draft) => Ok(Self { draft: draft.clone(), ..self.clone() }),
            None if self.drafters.is_empty() => Ok(self.clone()),
            None => {
                let known = self.drafters.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                let reason = format!(
                    "drafter {name:?} was not measured, the file has {known} (measure again with straw explain --save-cost)"
                );
                Err(SimError::Table { name: "cost file".into(), reason })
            }
        }
    }

    /// Reads and checks a JSON file's text. Error: what serde says, with line and column, or the first bad number.
    pub fn from_json(text: &str) -> Result<Self, SimError> {
        let parsed: Result<Self, _> = serde_json::from_str(text);
        parsed.map_err(|e| SimError::Table { name: "cost file".into(), reason: e.to_string() })?.checked()
    }

    /// Only a verification table.
    pub fn from_table(table: Staircase) -> Result<Self, SimError> {
        let verify = VerifyCost::Table(table);
        let (draft, context) = (DraftCost::default(), ContextCost::default());
        Self { verify, draft, drafters: BTreeMap::new(), round_s: 0.0, switch_s: 0.0, context }.checked()
    }

    /// V(rows) at an empty context.
    pub fn verify_s(&self, rows: usize) -> Result<f64, SimError> {
        match &self.verify {
            VerifyCost::Table(table) => table.seconds(rows),
            VerifyCost::Roofline(roofline) => Ok(roofline.seconds(rows)),
        }
    }

    /// Prices of one tree: `drafted` nodes grown in `steps` drafter steps. With no node it is the plain pass exactly: no
    /// drafter, no round constant.
    pub fn price(&self, drafted: usize, steps: usize) -> Result<Price, SimError> {
        let verify_s = self.verify_s(drafted + 1)?;
        let rows = (drafted + 1) as f64;
        let per_context = self.context.token_s + rows * self.context.row_token_s;
        if drafted == 0 {
            return Ok(Price { fixed_s: verify_s, context_s: per_context });
        }
        let draft_s = self.draft.seconds(drafted, steps);
        Ok(Price { fixed_s: verify_s + draft_s + self.round_s, context_s: per_context + self.context.draft_token_s })
    }
}

/// Seconds of a round as a line over the context length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// At an empty context.
    pub fixed_s: f64,
    /// Per context token.
    pub context_s: f64,
}

impl Price {
    /// Seconds with `context` tokens before the root.
    pub fn seconds(&self, context: usize) -> f64 {
        self.fixed_s + context as f64 * self.context_s
    }
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
