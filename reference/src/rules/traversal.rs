//! Traversal verification (Weng et al., arXiv 2505.12398): leaves first, back to the root. A refused leaf is
//! deleted and its parent's target law becomes the residual, so a whole path is judged before any of its tokens is given up.
//! Exact on average over children drawn without replacement; on a chain it is block verification.

use super::rule::{Decision, Drafted};
use crate::number::{Number, at_most_one, excess, normalised, ratio, sum, without};

/// One decision per row, in the order in which rows are tried.
pub(super) fn decide<N: Number>(drafted: &Drafted<N>) -> Vec<Decision<N>> {
    let tree = &drafted.tree;
    let mut rest = Remaining {
        children: (0..tree.rows()).map(|row| tree.children(row).collect()).collect(),
        weight: vec![N::one(); tree.rows()],
        drafted: drafted.clone(),
    };
    rest.weigh_descendants(0);
    let mut alive = N::one();
    let mut decisions = Vec::new();
    loop {
        let leaf = rest.leftmost_leaf();
        let accept = rest.weight[leaf].clone();
        decisions.push(Decision { row: leaf, probability: alive.clone() * accept.clone(), next: rest.drafted.p[leaf].clone() });
        let Some(parent) = tree.parents()[leaf] else { return decisions };
        alive = alive * (N::one() - accept);
        rest.refuse(leaf, parent);
    }
}

/// The tree without the refused leaves, and the laws and weights that are left.
struct Remaining<N> {
    children: Vec<Vec<usize>>,
    /// The paper's p(node): the probability of accepting it once all its children are refused.
    weight: Vec<N>,
    drafted: Drafted<N>,
}

impl<N: Number> Remaining<N> {
    fn leftmost_leaf(&self) -> usize {
        let mut row = 0;
        while let Some(&first) = self.children[row].first() {
            row = first;
        }
        row
    }

    /// p(child) = min(1, p(parent) P(child) / Q(child)) for every node under `row`.
    fn weigh_descendants(&mut self, row: usize) {
        for child in self.children[row].clone() {
            let x = self.drafted.token(child);
            let ratio = ratio(self.drafted.p[row][x].clone(), self.drafted.q[row][x].clone());
            self.weight[child] = at_most_one(self.weight[row].clone() * ratio);
            self.weigh_descendants(child);
        }
    }

    /// R = max(p(m) P - Q, 0), S = sum R; p(m) = S / (S + 1 - p(m)); P = R / S; Q = norm(Q without the leaf).
    fn refuse(&mut self, leaf: usize, m: usize) {
        let x = self.drafted.token(leaf);
        self.children[m].retain(|&child| child != leaf);
        let (p, q) = (self.drafted.p[m].clone(), self.drafted.q[m].clone());
        let r = excess(&self.weight[m], &p, &q);
        let s = sum(r.clone());
        self.weight[m] = ratio(s.clone(), s + N::one() - self.weight[m].clone());
        self.drafted.p[m] = normalised(r).unwrap_or(p);
        self.drafted.q[m] = normalised(without(&q, x)).unwrap_or(q);
        self.weigh_descendants(m);
    }
}
