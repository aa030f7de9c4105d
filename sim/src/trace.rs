//! Acceptance traces: JSON lines, hardware-independent. A header, then one line per round with every drafted node's draft and
//! target probability. Files of any engine in this schema work; every line is checked against its own arithmetic.
//! Knows no model and no cost.

use crate::{DrafterSteps, SimError};
use serde::{Deserialize, Serialize};
use specdec::{Budget, SamplingParams};
use std::{
    collections::BTreeSet,
    io::{BufRead, Write},
    num::NonZeroUsize,
};

/// Value of `schema` in the header.
pub const SCHEMA: &str = "straw-trace";
/// Value of `version` in the header.
pub const VERSION: u32 = 1;

/// A model or drafter, by name and content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// For people.
    pub name: String,
    /// Of the file; for machines.
    pub hash: String,
}

/// Whether the tree knew the target's noise. Only a tree that did not has the exact counterfactual
/// `E[tau] = 1 + sum of path products`; with shared noise (Gumbel-coupled children) only the realised path counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TreeNoise {
    /// Children chosen from draft probabilities alone, or greedy.
    Independent,
    /// Children chosen with the noise that the target samples with.
    Shared,
}

/// First line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceHeader {
    /// [`SCHEMA`].
    pub schema: String,
    /// [`VERSION`].
    pub version: u32,
    /// Target.
    pub model: Identity,
    /// Drafter.
    pub drafter: Identity,
    /// Sampling; target probabilities are those of this law (after temperature and filters).
    pub sampling: SamplingParams,
    /// What the tree knew.
    pub tree_noise: TreeNoise,
    /// Which positions have a line.
    #[serde(default)]
    pub roots: Roots,
    /// Nodes a tree could have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Tokens an answer could have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
    /// Sequential steps of the drafter behind a tree.
    #[serde(default)]
    pub draft_steps: DrafterSteps,
    /// The prompts, in order.
    pub prompts: Vec<TracePrompt>,
}

/// Positions that have a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Roots {
    /// Those where the rounds of the recording began.
    #[default]
    Visited,
    /// Every position of every answer whose token has a successor. Then the walk of another budget over the same text is exact.
    Dense,
    /// Every so many positions. Unlike visited roots they fall into easy spans as often as the text does.
    Every(NonZeroUsize),
}

/// A prompt by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracePrompt {
    /// Unique in the file.
    pub id: String,
    /// Kind of text, such as `code`.
    pub workload: String,
}

/// A drafted node. Row 0 is the root; the node at index `i` is row `i + 1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceNode {
    /// Parent row.
    pub parent: usize,
    /// Distance from the root, at least 1.
    pub depth: usize,
    /// Place among the drafter's choices at the parent, 0 the best.
    pub rank: usize,
    /// Log-probability of the edge under the drafter, at most 0.
    pub draft_log_prob: f64,
    /// Log-probability of the edge under the target's sampling law; null where filters make it impossible.
    pub target_log_prob: Option<f64>,
    /// Place of the token among the target's choices at the parent, 0 the largest.
    pub target_rank: usize,
}

/// One round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRound {
    /// One of the header's prompts.
    pub prompt: String,
    /// Absolute position of the root.
    pub position: u64,
    /// Tokens in the cache before the root.
    pub context: u64,
    /// Drafted nodes, parents first.
    pub nodes: Vec<TraceNode>,
    /// Accepted rows from the root's child down; empty when all were refused.
    pub accepted: Vec<usize>,
}

/// A checked trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    header: TraceHeader,
    rounds: Vec<TraceRound>,
}

impl Trace {
    /// Reads and checks JSON lines. Error: the first bad line, by number.
    pub fn read(input: impl BufRead) -> Result<Self, SimError> {
        let mut lines = input.lines().enumerate().map(|(i, line)| {
            let error = |reason: String| SimError::Trace { line: i + 1, reason };
            line.map_err(|e| error(format!("not readable: {e}"))).map(|text| (i + 1, text))
        });
        let (_, first) =
            lines.next().unwrap_or(Err(SimError::Trace { line: 1, reason: "the file is empty, expected a header".into() }))?;
        let header = parse(1, &first)?;
        let mut rounds = Vec::new();
        for line in lines {
            let (number, text) = line?;
            if !text.trim().is_empty() {
                rounds.push(parse(number, &text)?);
            }
        }
        Self::new(header, rounds)
    }

    /// Checks a trace made in memory; line numbers count the header as 1.
    pub fn new(header: TraceHeader, rounds: Vec<TraceRound>) -> Result<Self, SimError> {
        check_header(&header)?;
        let mut last = vec![None; header.prompts.len()];
        for (i, round) in rounds.iter().enumerate() {
            check_round(&header, round, &mut last).map_err(|reason| SimError::Trace { line: i + 2, reason })?;
        }
        if rounds.is_empty() {
            return Err(SimError::Trace { line: 2, reason: "no round follows the header (record at least one)".into() });
        }
        Ok(Self { header, rounds })
    }

    /// Writes JSON lines.
    pub fn write(&self, mut out: impl Write) -> std::io::Result<()> {
        let text = |value: Result<String, serde_json::Error>| value.map_err(std::io::Error::from);
        writeln!(out, "{}", text(serde_json::to_string(&self.header))?)?;
        self.rounds.iter().try_for_each(|round| writeln!(out, "{}", text(serde_json::to_string(round))?))
    }

    /// The header.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Rounds in file order.
    pub fn rounds(&self) -> &[TraceRound] {
        &self.rounds
    }

    /// Rounds of every prompt, prompts in header order.
    pub fn by_prompt(&self) -> Vec<Vec<&TraceRound>> {
        let of = |prompt: &TracePrompt| self.rounds.iter().filter(|r| r.prompt == prompt.id).collect();
        self.header.prompts.iter().map(of).collect()
    }

    /// True when every position has a line.
    pub fn is_dense(&self) -> bool {
        self.header.roots == Roots::Dense
    }

    /// Workloads, in alphabetical order.
    pub fn workloads(&self) -> BTreeSet<&str> {
        self.header.prompts.iter().map(|p| p.workload.as_str()).collect()
    }

    /// The prompts that `keep` wants, with their rounds. Error: no round is left.
    pub fn only(&self, keep: impl Fn(&TracePrompt) -> bool) -> Result<Self, SimError> {
        let prompts: Vec<TracePrompt> = self.header.prompts.iter().filter(|p| keep(p)).cloned().collect();
        let ids: BTreeSet<&str> = prompts.iter().map(|p| p.id.as_str()).collect();
        let rounds = self.rounds.iter().filter(|r| ids.contains(r.prompt.as_str())).cloned().collect();
        Self::new(TraceHeader { prompts: prompts.clone(), ..self.header.clone() }, rounds)
    }
}

fn parse<'a, T: Deserialize<'a>>(line: usize, text: &'a str) -> Result<T, SimError> {
    serde_json::from_str(text).map_err(|e| SimError::Trace { line, reason: format!("{e}") })
}

fn check_header(header: &TraceHeader) -> Result<(), SimError> {
    let error = |reason: String| Err(SimError::Trace { line: 1, reason });
    if header.schema != SCHEMA {
        return error(format!("schema is {:?}, expected {SCHEMA:?}", header.schema));
    }
    if header.version != VERSION {
        return error(format!(
            "schema version is {}, expected {VERSION} (record again, or use the straw that wrote it)",
            header.version
        ));
    }
    let mut ids = BTreeSet::new();
    if let Some(twice) = header.prompts.iter().find(|p| !ids.insert(&p.id)) {
        return error(format!("prompt id {:?} is listed twice", twice.id));
    }
    if header.sampling.is_greedy() && header.tree_noise == TreeNoise::Shared {
        return error("tree_noise is shared at temperature 0, where there is no noise (write independent)".into());
    }
    Ok(())
}

/// f32 softmax sums of a large vocabulary stay within this of 1.
const PROBABILITY_SLACK: f64 = 1e-3;

fn check_round(header: &TraceHeader, round: &TraceRound, last: &mut [Option<u64>]) -> Result<(), String> {
    let prompt = header.prompts.iter().position(|p| p.id == round.prompt);
    let prompt = prompt.ok_or_else(|| format!("prompt {:?} is not in the header", round.prompt))?;
    if last[prompt].is_some_and(|l| l >= round.position) {
        return Err(format!("position {} of prompt {:?} does not come after the round before", round.position, round.prompt));
    }
    if header.roots == Roots::Dense && last[prompt].is_some_and(|l| l + 1 != round.position) {
        return Err(format!("position {} leaves a gap, but the header says dense", round.position));
    }
    last[prompt] = Some(round.position);
    if round.context > round.position {
        return Err(format!("context {} is longer than the {} tokens before the root", round.context, round.position));
    }
    for (i, node) in round.nodes.iter().enumerate() {
        check_node(round, i + 1, node)?;
    }
    let mut mass = vec![0.0; round.nodes.len() + 1];
    round.nodes.iter().for_each(|n| mass[n.parent] += n.target_log_prob.map_or(0.0, f64::exp));
    if let Some(parent) = mass.iter().position(|&m| m > 1.0 + PROBABILITY_SLACK) {
        return Err(format!(
            "children of row {parent} have target probabilities that sum to {:.6}, expected at most 1",
            mass[parent]
        ));
    }
    check_path(header, round)
}

fn check_node(round: &TraceRound, row: usize, node: &TraceNode) -> Result<(), String> {
    if node.parent >= row {
        return Err(format!("row {row} has parent {}, which does not come before it", node.parent));
    }
    let above = if node.parent == 0 { 0 } else { round.nodes[node.parent - 1].depth };
    if node.depth != above + 1 {
        return Err(format!("row {row} has depth {}, expected {} (one more than its parent)", node.depth, above + 1));
    }
    for (name, value) in [("draft", Some(node.draft_log_prob)), ("target", node.target_log_prob)] {
        if value.is_some_and(|v| !v.is_finite() || v > 0.0) {
            return Err(format!("row {row} has {name} log-probability {value:?}, expected a finite number of at most 0"));
        }
    }
    let twin = |n: &&TraceNode| n.parent == node.parent && (n.rank == node.rank || n.target_rank == node.target_rank);
    match round.nodes[..row - 1].iter().find(twin) {
        Some(_) => Err(format!("row {row} has the rank or target rank of a sibling")),
        None => Ok(()),
    }
}

fn check_path(header: &TraceHeader, round: &TraceRound) -> Result<(), String> {
    let mut at = 0;
    for &row in &round.accepted {
        let node = row.checked_sub(1).and_then(|i| round.nodes.get(i));
        match node {
            Some(n) if n.parent == at => at = row,
            _ => return Err(format!("accepted row {row} is not a child of row {at}")),
        }
        if header.sampling.is_greedy() && round.nodes[row - 1].target_rank != 0 {
            return Err(format!("accepted row {row} is not the target's first choice, but the temperature is 0"));
        }
        if round.nodes[row - 1].target_log_prob.is_none() {
            return Err(format!("accepted row {row} is impossible under the target"));
        }
    }
    if header.sampling.is_greedy() && round.nodes.iter().any(|n| n.parent == at && n.target_rank == 0) {
        return Err(format!("the path stops at row {at}, but one of its children is the target's first choice"));
    }
    Ok(())
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
