//! The acceptance rules, one file each, as the papers state them. Read `rule.rs` first.

mod block;
mod deterministic_children;
pub(crate) mod greedy;
pub(crate) mod rejection;
mod rule;
mod sample_and_match;
mod traversal;
mod typical;
mod without_replacement;

pub use rule::{Decision, Drafted, Rule};
