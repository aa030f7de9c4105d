//! How many nodes one round may draft: 0 (speculation off) or 3 to 32. The root is not counted.
//! Knows nothing of tree shapes or of how a budget is chosen.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Drafted nodes per round, root excluded; 0 means plain decoding.
///
/// The range 3..=32 is where trees are worth tuning: below 3 the fixed cost of a round dominates, above 32 verification
/// leaves the flat part of its cost curve on every machine measured so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "usize", into = "usize")]
pub struct Budget(u8);

impl Budget {
    /// Plain decoding: nothing is drafted.
    pub const OFF: Budget = Budget(0);
    /// The smallest budget that drafts.
    pub const MIN: usize = 3;
    /// The largest budget.
    pub const MAX: usize = 32;

    /// Checks the range. Error: anything but 0 and 3..=32.
    pub fn new(nodes: usize) -> Result<Self, BudgetError> {
        match nodes {
            0 | Self::MIN..=Self::MAX => Ok(Self(nodes as u8)),
            _ => Err(BudgetError::OutOfRange(nodes)),
        }
    }

    /// Drafted nodes allowed per round.
    pub fn nodes(self) -> usize {
        self.0.into()
    }

    /// Rows of a full verification pass: the root and every drafted node.
    pub fn rows(self) -> usize {
        self.nodes() + 1
    }

    /// True for budget 0.
    pub fn is_off(self) -> bool {
        self.0 == 0
    }

    /// Every budget a user can ask for: 0, 3, 4, ..., 32.
    pub fn all() -> impl Iterator<Item = Budget> {
        std::iter::once(Self::OFF).chain((Self::MIN..=Self::MAX).map(|n| Self(n as u8)))
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Budget {
    type Err = BudgetError;
    fn from_str(text: &str) -> Result<Self, BudgetError> {
        Self::new(text.trim().parse().map_err(|_| BudgetError::NotANumber(text.into()))?)
    }
}

impl TryFrom<usize> for Budget {
    type Error = BudgetError;
    fn try_from(nodes: usize) -> Result<Self, BudgetError> {
        Self::new(nodes)
    }
}

impl From<Budget> for usize {
    fn from(budget: Budget) -> usize {
        budget.nodes()
    }
}

/// Why a budget was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Outside 0 and 3..=32.
    #[error("draft budget {0} is outside 3..=32 (0 turns drafting off; set --budget)")]
    OutOfRange(usize),
    /// Not a whole number.
    #[error("draft budget {0:?} is not a whole number (set --budget to 0 or 3..=32)")]
    NotANumber(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zero_and_3_to_32_are_budgets() {
        let accepted: Vec<usize> = (0..100).filter(|&n| Budget::new(n).is_ok()).collect();
        let expected: Vec<usize> = std::iter::once(0).chain(3..=32).collect();
        assert_eq!(accepted, expected);
        assert_eq!(Budget::all().map(Budget::nodes).collect::<Vec<_>>(), expected);
        assert_eq!("2".parse::<Budget>(), Err(BudgetError::OutOfRange(2)));
        assert!(serde_json::from_str::<Budget>("33").is_err());
    }

    #[test]
    fn the_root_is_not_in_the_budget() {
        assert_eq!(Budget::new(16).unwrap().rows(), 17);
        assert_eq!(Budget::OFF.rows(), 1);
    }
}
