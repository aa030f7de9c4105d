//! The rows of one pass: where each stands and which rows of the pass it sees. Everything before the pass is in the
//! state, and every row sees all of that. Knows positions and ancestry; nothing of tokens' meaning or of arithmetic.

use specdec::DraftTree;

/// `n` rows, parents before children.
pub struct Rows {
    /// Absolute position of every row.
    pub positions: Vec<usize>,
    /// Row that a row continues; `None` continues the state.
    pub parents: Vec<Option<usize>>,
    /// Rows of this pass that a row attends to, in the order in which plain decoding would meet them, itself included.
    pub sees: Vec<Vec<usize>>,
}

impl Rows {
    /// A tree whose root stands at `first`: a row sees its ancestors and itself, never a sibling.
    pub fn tree(tree: &DraftTree, first: usize) -> Self {
        Self {
            positions: tree.depths().iter().map(|depth| first + depth).collect(),
            parents: tree.parents().to_vec(),
            sees: (0..tree.rows()).map(|row| tree.path(row)).collect(),
        }
    }

    /// `n` successive positions from `first`: a row sees those before it and itself.
    pub fn chain(n: usize, first: usize) -> Self {
        Self {
            positions: (first..first + n).collect(),
            parents: (0..n).map(|row| row.checked_sub(1)).collect(),
            sees: (0..n).map(|row| (0..=row).collect()).collect(),
        }
    }

    /// `n` successive positions from `first`, all of which see each other (DFlash, arXiv 2602.06036).
    pub fn block(n: usize, first: usize) -> Self {
        Self { sees: vec![(0..n).collect(); n], ..Self::chain(n, first) }
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_the_tree_without_branches() {
        let tree = DraftTree::chain(5, &[(6, 0.0), (7, 0.0)]).unwrap();
        let (a, b) = (Rows::tree(&tree, 9), Rows::chain(3, 9));
        assert_eq!((a.positions, a.parents, a.sees), (b.positions, b.parents, b.sees));
    }

    #[test]
    fn siblings_share_a_position_and_do_not_see_each_other() {
        let tree = DraftTree::new(5, &[(0, 6, 0.0), (0, 7, 0.0), (2, 8, 0.0)]).unwrap();
        let rows = Rows::tree(&tree, 9);
        assert_eq!(rows.positions, [9, 10, 10, 11]);
        assert_eq!(rows.sees[3], [0, 2, 3]);
    }
}
