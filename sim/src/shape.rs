//! The shape of a draft tree without tokens: parent, depth and rank of every drafted row, in the order in which they were
//! grown, so that a smaller budget is a prefix. Rank 0 is the drafter's best child. Knows nothing of acceptance or cost.

use crate::SimError;
use specdec::DraftTree;

/// A tree shape. Row 0 is the root and not drafted; rows 1.. are drafted, parents before children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    parents: Vec<usize>,
    depths: Vec<usize>,
    ranks: Vec<usize>,
}

impl Shape {
    /// No draft: plain decoding.
    pub fn root() -> Self {
        Self { parents: vec![0], depths: vec![0], ranks: vec![0] }
    }

    /// A fixed shape: `drafted[i] = (parent row, rank)` becomes row `i + 1`.
    ///
    /// Errors: a parent that does not come first, two siblings of one rank.
    pub fn new(drafted: &[(usize, usize)]) -> Result<Self, SimError> {
        let mut shape = Self::root();
        for (i, &(parent, rank)) in drafted.iter().enumerate() {
            let row = i + 1;
            if parent >= row {
                return Err(SimError::Shape { row, reason: format!("parent {parent} does not come before it") });
            }
            if (1..row).any(|r| shape.parents[r] == parent && shape.ranks[r] == rank) {
                return Err(SimError::Shape { row, reason: format!("rank {rank} is taken by a sibling") });
            }
            shape.push(parent, rank);
        }
        Ok(shape)
    }

    /// A path of `nodes` best children.
    pub fn chain(nodes: usize) -> Self {
        let mut shape = Self::root();
        (0..nodes).for_each(|row| shape.push(row, 0));
        shape
    }

    /// The first `nodes` rows of the complete `k`-ary tree in level order, `k >= 1`.
    pub fn k_ary(k: usize, nodes: usize) -> Self {
        let mut shape = Self::root();
        (0..nodes).for_each(|i| shape.push(i / k, i % k));
        shape
    }

    /// A tree whose tokens are ranks, as the growers of this crate make it.
    pub(crate) fn from_tree(tree: &DraftTree) -> Self {
        let mut shape = Self::root();
        for row in 1..tree.rows() {
            shape.push(tree.parents()[row].unwrap_or(0), tree.tokens()[row] as usize);
        }
        shape
    }

    pub(crate) fn push(&mut self, parent: usize, rank: usize) {
        self.depths.push(self.depths[parent] + 1);
        self.parents.push(parent);
        self.ranks.push(rank);
    }

    /// The first `nodes` drafted rows: what a smaller budget would have grown.
    pub fn prefix(&self, nodes: usize) -> Self {
        let rows = self.rows().min(nodes + 1);
        Self { parents: self.parents[..rows].into(), depths: self.depths[..rows].into(), ranks: self.ranks[..rows].into() }
    }

    /// Rows, root included: what a verification pass computes.
    pub fn rows(&self) -> usize {
        self.parents.len()
    }

    /// Drafted nodes, root excluded: what a budget counts.
    pub fn drafted(&self) -> usize {
        self.rows() - 1
    }

    /// Parent row of a drafted row; 0 for the root too.
    pub fn parent(&self, row: usize) -> usize {
        self.parents[row]
    }

    /// Distance from the root.
    pub fn depth(&self, row: usize) -> usize {
        self.depths[row]
    }

    /// Place among the drafter's choices at the parent, 0 the best.
    pub fn rank(&self, row: usize) -> usize {
        self.ranks[row]
    }

    /// Depth of the deepest row.
    pub fn max_depth(&self) -> usize {
        self.depths.iter().copied().max().unwrap_or(0)
    }

    /// Children of every row, by rising rank.
    pub(crate) fn children(&self) -> Vec<Vec<usize>> {
        let mut children = vec![Vec::new(); self.rows()];
        (1..self.rows()).for_each(|row| children[self.parents[row]].push(row));
        children.iter_mut().for_each(|c| c.sort_by_key(|&row| self.ranks[row]));
        children
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_not_drafted() {
        assert_eq!((Shape::root().rows(), Shape::root().drafted()), (1, 0));
        assert_eq!((Shape::chain(5).rows(), Shape::chain(5).drafted(), Shape::chain(5).max_depth()), (6, 5, 5));
    }

    #[test]
    fn unary_is_a_chain_and_binary_fills_levels() {
        assert_eq!(Shape::k_ary(1, 9), Shape::chain(9));
        let binary = Shape::k_ary(2, 14);
        assert_eq!((1..15).map(|r| binary.depth(r)).collect::<Vec<_>>(), [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert_eq!(binary.prefix(6), Shape::k_ary(2, 6));
        assert_eq!(binary.prefix(99), binary);
    }

    #[test]
    fn broken_shapes_are_refused_with_a_sentence() {
        let late = Shape::new(&[(1, 0)]).unwrap_err().to_string();
        assert!(late.starts_with("tree row 1: parent 1 does not come before it"), "{late}");
        assert!(Shape::new(&[(0, 0), (0, 0)]).is_err());
        assert!(Shape::new(&[(0, 3), (1, 0), (0, 1)]).is_ok());
    }
}
