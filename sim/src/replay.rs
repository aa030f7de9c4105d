//! A trace seen from other budgets. A tree accepted by sample-and-match has an exact counterfactual at every recorded root:
//! `E[tau] = 1 + sum over kept nodes of the product of target probabilities on the path`; at temperature 0 the product is
//! membership of the target's own choice. What is exact is the round: which roots a smaller budget would have visited is known
//! only to a dense trace, whose text is walked.

use crate::{
    ShapeKind, SimError, Trace,
    trace::{TraceRound, TreeNoise},
};
use specdec::Budget;
use std::ops::Range;

/// A trace prepared for one family of trees: nodes in the order in which budgets add them.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    prompts: Vec<Vec<ReplayRound>>,
    dense: bool,
}

/// One recorded root.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayRound {
    /// Tokens before the root.
    pub(crate) context: usize,
    /// `[n]` = expected tokens at budget `n` (bonus included), `n` from 0 to the recorded nodes.
    tau: Vec<f64>,
    /// Draft path probability per row, root first.
    pub(crate) seen: Vec<f64>,
    /// Accepted rows in the new order.
    pub(crate) accepted: Vec<usize>,
}

impl ReplayRound {
    /// Drafted nodes.
    pub fn drafted(&self) -> usize {
        self.tau.len() - 1
    }

    /// Expected tokens of the round had it drafted at most `nodes` nodes.
    pub fn tau(&self, nodes: usize) -> f64 {
        self.tau[nodes.min(self.drafted())]
    }

    /// Drafts that this very text accepts at most `nodes` nodes.
    pub fn accepted(&self, nodes: usize) -> usize {
        self.accepted.iter().take_while(|&&row| row <= nodes).count()
    }
}

impl Replay {
    /// Orders every recorded tree for `kind`: best-first by draft path probability (specdec's order), or the chain of first
    /// choices. Nodes deeper than `max_depth` are left out.
    ///
    /// Error: a family that a recorded tree does not contain.
    pub fn new(trace: &Trace, kind: &ShapeKind, max_depth: usize) -> Result<Self, SimError> {
        let chain = match kind {
            ShapeKind::Chain => true,
            ShapeKind::BestFirst => false,
            other => {
                return Err(SimError::NotIdentifiable {
                    what: "the acceptance of this shape",
                    reason: format!(
                        "a trace holds the nodes its drafter chose, not those of {other} (use best-first or chain, or fit a law)"
                    ),
                });
            }
        };
        let greedy = trace.header().sampling.is_greedy();
        let realised = trace.header().tree_noise == TreeNoise::Shared;
        let prompts = trace
            .by_prompt()
            .into_iter()
            .map(|rounds| rounds.into_iter().map(|round| prepare(round, chain, max_depth, greedy, realised)).collect());
        Ok(Self { prompts: prompts.collect(), dense: trace.is_dense() })
    }

    /// Rounds by prompt.
    pub fn prompts(&self) -> &[Vec<ReplayRound>] {
        &self.prompts
    }

    /// True when a line exists for every position.
    pub fn is_dense(&self) -> bool {
        self.dense
    }

    /// Only the rounds whose context length lies in the band: the rows of a table over context. Not dense any more.
    pub fn in_context(&self, band: Range<usize>) -> Self {
        let keep = |rounds: &Vec<ReplayRound>| rounds.iter().filter(|r| band.contains(&r.context)).cloned().collect();
        Self { prompts: self.prompts.iter().map(keep).collect(), dense: false }
    }

    /// Every other prompt, the first or the second of each pair.
    pub fn every_other(&self, first: usize) -> Self {
        Self { prompts: self.prompts.iter().skip(first).step_by(2).cloned().collect(), dense: self.dense }
    }

    /// Mean expected tokens per pass over all recorded roots at a budget, bonus included. On a trace that is not dense the
    /// roots are those of the recording.
    pub fn tau(&self, budget: Budget) -> f64 {
        let rounds = self.prompts.iter().flatten();
        rounds.clone().map(|r| r.tau(budget.nodes())).sum::<f64>() / rounds.count() as f64
    }

    /// Tokens per pass of the walk over the recorded text that a budget would have made: the text does not depend on the
    /// budget, so this is exact for this text. As in specdec's `tokens_per_pass`, a round counts what the user received: nothing
    /// behind the end of the answer. `None` when not dense.
    pub fn walked_tau(&self, budget: Budget) -> Option<f64> {
        self.dense.then(|| {
            let (mut tokens, mut rounds) = (0, 0);
            for prompt in &self.prompts {
                let mut at = 0;
                while let Some(round) = prompt.get(at) {
                    let emitted = (round.accepted(budget.nodes()) + 1).min(prompt.len() - at);
                    tokens += emitted;
                    rounds += 1;
                    at += emitted;
                }
            }
            tokens as f64 / f64::from(rounds)
        })
    }
}

fn prepare(round: &TraceRound, chain: bool, max_depth: usize, greedy: bool, realised: bool) -> ReplayRound {
    let nodes = &round.nodes;
    let mut draft = vec![0.0; nodes.len() + 1];
    let mut product = vec![1.0; nodes.len() + 1];
    let mut first_choice = vec![true; nodes.len() + 1];
    for (i, n) in nodes.iter().enumerate() {
        let edge = match (greedy, realised) {
            (true, _) => f64::from(n.target_rank == 0),
            (_, true) => f64::from(round.accepted.contains(&(i + 1))),
            _ => n.target_log_prob.map_or(0.0, f64::exp),
        };
        // Engines add f32 edges; a near-tie must fall as it fell there.
        draft[i + 1] = draft[n.parent] + f64::from(n.draft_log_prob as f32);
        product[i + 1] = product[n.parent] * edge;
        first_choice[i + 1] = first_choice[n.parent] && n.rank == 0;
    }
    let mut order: Vec<usize> =
        (1..=nodes.len()).filter(|&row| nodes[row - 1].depth <= max_depth && (!chain || first_choice[row])).collect();
    let depth = |row: usize| nodes[row - 1].depth;
    order.sort_by(|&a, &b| draft[b].total_cmp(&draft[a]).then(depth(a).cmp(&depth(b))).then(a.cmp(&b)));
    let mut tau = vec![1.0];
    let mut seen = vec![1.0];
    for &row in &order {
        tau.push(tau[tau.len() - 1] + product[row]);
        seen.push(draft[row].exp());
    }
    let place = |row: &usize| order.iter().position(|o| o == row).map(|i| i + 1);
    let accepted = round.accepted.iter().map_while(place).collect();
    ReplayRound { context: round.context as usize, tau, seen, accepted }
}

#[cfg(test)]
#[path = "replay_tests.rs"]
mod tests;
