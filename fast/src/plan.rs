//! The tables of one pass, compiled from a draft tree or a run of tokens before any arithmetic: positions, parents, and
//! for every row the rows it sees. A pass over 33 rows and a pass over one read the same kind of table.

use crate::FastError;
use crate::backend::{Mask, Walk};
use specdec::DraftTree;

/// What becomes of the rows of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They are a chain and become part of the state at once.
    Kept,
    /// They are staged from this row on; a commit may follow.
    Staged(usize),
}

/// Rows of one pass over a sequence.
pub(crate) struct Plan {
    /// Token of every row.
    pub tokens: Vec<u32>,
    /// Absolute position of every row.
    pub positions: Vec<u32>,
    /// Parent row; `None` where the committed sequence is the parent.
    pub parents: Vec<Option<usize>>,
    /// What every row sees.
    pub mask: Mask,
    /// In which order a tree's rows pass the recurrence; planned for trees only.
    pub walk: Walk,
    /// What becomes of the rows.
    pub fate: Fate,
    path: Vec<usize>,
}

impl Plan {
    /// Room for `rows` rows, so that compiling allocates nothing.
    pub fn with_room(rows: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(rows),
            positions: Vec::with_capacity(rows),
            parents: Vec::with_capacity(rows),
            mask: Mask::with_capacity(rows, rows * (rows + 1)),
            walk: Walk::with_capacity(rows),
            fate: Fate::Kept,
            path: Vec::with_capacity(rows),
        }
    }

    /// A run of tokens after `base` committed ones, to be kept.
    pub fn run(&mut self, base: usize, tokens: &[u32]) {
        self.clear(Fate::Kept);
        for (row, &token) in tokens.iter().enumerate() {
            self.mask.push(base + row + 1, []);
            self.push(token, base + row, row.checked_sub(1));
        }
    }

    /// A draft tree whose root follows `base` committed tokens, staged.
    pub fn tree(&mut self, base: usize, tree: &DraftTree) {
        self.clear(Fate::Staged(0));
        for (row, (&token, &parent)) in tree.tokens().iter().zip(tree.parents()).enumerate() {
            self.path.clear();
            let mut at = Some(row);
            while let Some(ancestor) = at {
                self.path.push(ancestor);
                at = tree.parents()[ancestor];
            }
            self.mask.push(base, self.path.iter().rev().copied());
            self.push(token, base + self.path.len() - 1, parent);
        }
        self.walk.plan(&self.parents);
    }

    /// Rows at consecutive positions after `base` committed ones that all see each other (a DFlash block), staged.
    pub fn block(&mut self, base: usize, tokens: &[u32]) {
        self.clear(Fate::Staged(0));
        for (row, &token) in tokens.iter().enumerate() {
            self.mask.push(base, 0..tokens.len());
            self.push(token, base + row, row.checked_sub(1));
        }
    }

    /// No rows yet; those to come are staged from `first` on.
    pub fn start_staged(&mut self, first: usize) {
        self.clear(Fate::Staged(first));
    }

    /// A row that sees `base` committed positions and the staged rows of `path`, itself last. Rotated to `position`.
    pub fn push_staged(&mut self, token: u32, position: usize, base: usize, path: &[usize]) {
        self.mask.push(base, path.iter().copied());
        self.push(token, position, None);
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Refuses ids without an embedding and rows beyond `room` positions.
    pub fn check(&self, vocab: usize, room: usize) -> Result<(), FastError> {
        if let Some(&token) = self.tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(FastError::bounds("a token id", token as usize, format!("an id below the vocabulary size {vocab}")));
        }
        match self.positions.iter().max() {
            Some(&last) if last as usize >= room => {
                Err(FastError::bounds("a position", last as usize, format!("one below the session's {room} positions")))
            }
            _ => Ok(()),
        }
    }

    fn clear(&mut self, fate: Fate) {
        self.tokens.clear();
        self.positions.clear();
        self.parents.clear();
        self.mask.clear();
        self.fate = fate;
    }

    fn push(&mut self, token: u32, position: usize, parent: Option<usize>) {
        self.tokens.push(token);
        self.positions.push(position as u32);
        self.parents.push(parent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_depths_above_the_committed_tokens() {
        let tree = DraftTree::new(7, &[(0, 1, 0.0), (0, 2, 0.0), (1, 3, 0.0), (2, 3, 0.0), (3, 4, 0.0)]).unwrap();
        let mut plan = Plan::with_room(6);
        plan.tree(10, &tree);
        let depths: Vec<usize> = plan.positions.iter().map(|&p| p as usize - 10).collect();
        assert_eq!((&depths[..], plan.fate), (tree.depths(), Fate::Staged(0)));
        plan.run(3, &[5, 6]);
        assert_eq!((plan.rows(), &plan.positions[..], plan.fate), (2, &[3, 4][..], Fate::Kept));
    }

    #[test]
    fn rows_out_of_bounds_are_refused() {
        let mut plan = Plan::with_room(2);
        plan.run(3, &[5, 6]);
        assert!(plan.check(7, 5).is_ok());
        assert!(plan.check(6, 5).is_err());
        assert!(plan.check(7, 4).is_err());
    }
}
