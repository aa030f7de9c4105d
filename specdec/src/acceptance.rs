//! What a verification decided: which drafted rows the sequence keeps, and the token that follows them.
//! Does not know which rule decided it.

use serde::{Deserialize, Serialize};

/// The accepted path of one round and the token after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acceptance {
    /// Accepted rows from the root's child downwards; the root (row 0) is not listed. Empty: every draft was refused.
    pub path: Vec<usize>,
    /// The target's own token after the path: a bonus at a leaf, a correction elsewhere. Always emitted.
    pub next_token: u32,
}

impl Acceptance {
    /// Drafts accepted; the root and the next token are not counted.
    pub fn accepted(&self) -> usize {
        self.path.len()
    }

    /// Tokens this round emits: accepted drafts and the bonus token. Its mean over rounds is tau.
    pub fn emitted(&self) -> usize {
        self.path.len() + 1
    }

    /// Rows whose state is committed: the root, then the path.
    pub fn committed_rows(&self) -> impl Iterator<Item = usize> + '_ {
        std::iter::once(0).chain(self.path.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bonus_token_is_in_tau_and_the_root_is_not() {
        let two = Acceptance { path: vec![1, 4], next_token: 9 };
        assert_eq!((two.accepted(), two.emitted()), (2, 3));
        assert_eq!(two.committed_rows().collect::<Vec<_>>(), [0, 1, 4]);
        let none = Acceptance { path: vec![], next_token: 9 };
        assert_eq!((none.accepted(), none.emitted()), (0, 1));
    }
}
