//! A draft tree as flat arrays: row 0 is the root (the last emitted token), every other row is a drafted node.
//! Knows tokens, parents and draft log-probabilities; nothing of how they were scored or will be verified.

use crate::Acceptance;
use serde::{Deserialize, Serialize};
use std::{cmp::Ordering, collections::BinaryHeap};

/// Rows in topological order (parents before children). `parents[0]` is `None`, all others point to an earlier row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawTree", into = "RawTree")]
pub struct DraftTree {
    tokens: Vec<u32>,
    parents: Vec<Option<usize>>,
    depths: Vec<usize>,
    log_probs: Vec<f32>,
}

impl DraftTree {
    /// Only the root: what a plain decoding step verifies.
    pub fn root(token: u32) -> Self {
        Self { tokens: vec![token], parents: vec![None], depths: vec![0], log_probs: vec![0.0] }
    }

    /// A tree from flat arrays. `drafted[i] = (parent row, token, draft log-probability of the edge)` becomes row `i + 1`.
    ///
    /// Errors: a parent that does not come before its child, two siblings with one token, a positive or NaN log-probability.
    pub fn new(root: u32, drafted: &[(usize, u32, f32)]) -> Result<Self, TreeError> {
        let tree = Self::teacher_forced(root, drafted)?;
        for row in 1..tree.rows() {
            let parent = tree.parents[row];
            if (1..row).any(|other| tree.parents[other] == parent && tree.tokens[other] == tree.tokens[row]) {
                return Err(TreeError::TwinSiblings { row, token: tree.tokens[row] });
            }
        }
        Ok(tree)
    }

    /// Like [`new`](Self::new), but siblings may carry the same token: enough to compute logits, not to accept drafts.
    pub fn teacher_forced(root: u32, drafted: &[(usize, u32, f32)]) -> Result<Self, TreeError> {
        let mut tree = Self::root(root);
        for (i, &(parent, token, log_prob)) in drafted.iter().enumerate() {
            let row = i + 1;
            if parent >= row {
                return Err(TreeError::ParentAfterChild { row, parent });
            }
            if log_prob.is_nan() || log_prob > 0.0 {
                return Err(TreeError::LogProb { row, log_prob });
            }
            tree.push(parent, token, log_prob);
        }
        Ok(tree)
    }

    /// A single path of `(token, draft log-probability)` under the root.
    pub fn chain(root: u32, drafts: &[(u32, f32)]) -> Result<Self, TreeError> {
        let drafted: Vec<_> = drafts.iter().enumerate().map(|(i, &(token, log_prob))| (i, token, log_prob)).collect();
        Self::new(root, &drafted)
    }

    /// The best `budget` nodes by cumulative log-probability when every depth has its own independent candidates
    /// (DDTree, arXiv 2604.12989: optimal for a factorised drafter). `marginals[d]` lists the candidates of depth
    /// `d + 1`, best first. Ties go to the shallower node, then to the earlier found.
    ///
    /// Errors: unsorted candidates, twice the same token at one depth, a positive or NaN log-probability.
    pub fn best_first(root: u32, budget: usize, marginals: &[Vec<(u32, f32)>]) -> Result<Self, TreeError> {
        for (depth, candidates) in marginals.iter().enumerate() {
            if candidates.windows(2).any(|w| w[0].1 < w[1].1) {
                return Err(TreeError::UnsortedCandidates { depth: depth + 1 });
            }
            for (i, &(token, log_prob)) in candidates.iter().enumerate() {
                if log_prob.is_nan() || log_prob > 0.0 {
                    return Err(TreeError::LogProb { row: i, log_prob });
                }
                if candidates[..i].iter().any(|c| c.0 == token) {
                    return Err(TreeError::TwinSiblings { row: i, token });
                }
            }
        }
        let mut tree = Self::root(root);
        let mut heap = BinaryHeap::new();
        let mut found = 0;
        let mut offer = |heap: &mut BinaryHeap<Ranked>, parent: usize, base: f64, depth: usize, rank: usize| {
            if let Some(&(token, log_prob)) = marginals.get(depth - 1).and_then(|c| c.get(rank)) {
                heap.push(Ranked { total: base + f64::from(log_prob), depth, order: found, parent, rank, token, log_prob, base });
                found += 1;
            }
        };
        if budget > 0 {
            offer(&mut heap, 0, 0.0, 1, 0);
        }
        while let Some(best) = heap.pop() {
            let row = tree.push(best.parent, best.token, best.log_prob);
            if tree.drafted() == budget {
                break;
            }
            offer(&mut heap, best.parent, best.base, best.depth, best.rank + 1);
            offer(&mut heap, row, best.total, best.depth + 1, 0);
        }
        Ok(tree)
    }

    fn push(&mut self, parent: usize, token: u32, log_prob: f32) -> usize {
        self.depths.push(self.depths[parent] + 1);
        self.tokens.push(token);
        self.parents.push(Some(parent));
        self.log_probs.push(log_prob);
        self.tokens.len() - 1
    }

    /// Rows, the root included.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Drafted nodes: rows without the root. This is what a budget counts.
    pub fn drafted(&self) -> usize {
        self.rows() - 1
    }

    /// Token of every row.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Parent row of every row; `None` for the root only.
    pub fn parents(&self) -> &[Option<usize>] {
        &self.parents
    }

    /// Distance from the root of every row (root 0).
    pub fn depths(&self) -> &[usize] {
        &self.depths
    }

    /// Draft log-probability of the edge into every row (root 0.0).
    pub fn log_probs(&self) -> &[f32] {
        &self.log_probs
    }

    /// Depth of the deepest row.
    pub fn max_depth(&self) -> usize {
        self.depths.iter().copied().max().unwrap_or(0)
    }

    /// Rows from the root to `row`, both included.
    pub fn path(&self, row: usize) -> Vec<usize> {
        let mut path = vec![row];
        while let Some(parent) = self.parents[path[path.len() - 1]] {
            path.push(parent);
        }
        path.reverse();
        path
    }

    /// The child of `row` that carries `token`.
    pub fn child(&self, row: usize, token: u32) -> Option<usize> {
        (row + 1..self.rows()).find(|&c| self.parents[c] == Some(row) && self.tokens[c] == token)
    }

    /// Children of `row` in row order.
    pub fn children(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        (row + 1..self.rows()).filter(move |&c| self.parents[c] == Some(row))
    }

    /// Sample-and-match: from the root, follow the child that equals the target's sample at the current row.
    /// `samples[row]` is the target's token after `row`. Exact for any tree, because every emitted token is a target
    /// sample (facts: DDTree `follow_verified_tree`; Uzu `FlatTrie::accept`).
    ///
    /// # Panics
    /// If `samples` has not one token per row.
    pub fn follow(&self, samples: &[u32]) -> Acceptance {
        assert_eq!(samples.len(), self.rows(), "one sample per row");
        let mut path = Vec::new();
        let mut row = 0;
        while let Some(child) = self.child(row, samples[row]) {
            path.push(child);
            row = child;
        }
        Acceptance { path, next_token: samples[row] }
    }

    /// Drops every row deeper than `depth`: what fits before the end of the context.
    pub fn clipped(&self, depth: usize) -> Self {
        let mut kept = Self::root(self.tokens[0]);
        let mut new_row = vec![0; self.rows()];
        for row in 1..self.rows() {
            if let (Some(parent), true) = (self.parents[row], self.depths[row] <= depth) {
                new_row[row] = kept.push(new_row[parent], self.tokens[row], self.log_probs[row]);
            }
        }
        kept
    }
}

/// Heap entry of [`DraftTree::best_first`]: the largest total first, then the shallower, then the earlier found.
struct Ranked {
    total: f64,
    depth: usize,
    order: usize,
    parent: usize,
    rank: usize,
    token: u32,
    log_prob: f32,
    base: f64,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.total.total_cmp(&other.total).then(other.depth.cmp(&self.depth)).then(other.order.cmp(&self.order))
    }
}
impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Ranked {}

/// The tree in files: `root`, and `(parent row, token, log-probability)` per drafted node.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTree {
    root: u32,
    drafted: Vec<(usize, u32, f32)>,
}

impl TryFrom<RawTree> for DraftTree {
    type Error = TreeError;
    fn try_from(raw: RawTree) -> Result<Self, TreeError> {
        Self::new(raw.root, &raw.drafted)
    }
}

impl From<DraftTree> for RawTree {
    fn from(tree: DraftTree) -> Self {
        let drafted =
            (1..tree.rows()).filter_map(|row| Some((tree.parents[row]?, tree.tokens[row], tree.log_probs[row]))).collect();
        Self { root: tree.tokens[0], drafted }
    }
}

/// Why arrays are not a draft tree.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TreeError {
    /// Rows must come after their parents.
    #[error("tree row {row} has parent {parent}, which does not come before it (list parents before children)")]
    ParentAfterChild {
        /// The child.
        row: usize,
        /// Its alleged parent.
        parent: usize,
    },
    /// Two children of one row with the same token: the walk could not tell them apart.
    #[error("tree row {row} repeats token {token} of a sibling (merge the two branches)")]
    TwinSiblings {
        /// The second of the two.
        row: usize,
        /// Their token.
        token: u32,
    },
    /// Draft log-probabilities are at most 0.
    #[error("tree row {row} has draft log-probability {log_prob}, expected a number of at most 0")]
    LogProb {
        /// The row, or the rank at its depth.
        row: usize,
        /// What was given.
        log_prob: f32,
    },
    /// Candidates must be listed best first.
    #[error("draft candidates of depth {depth} are not sorted by falling log-probability")]
    UnsortedCandidates {
        /// Depth, the root's children being 1.
        depth: usize,
    },
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
