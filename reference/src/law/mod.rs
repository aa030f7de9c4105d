//! The check behind `straw verify law`: every acceptance rule against enumerated laws.

mod case;
mod check;
mod figures;
mod file;

pub use case::{Case, built_in_cases};
pub use check::{LawReport, RuleReport, check};
pub use file::{LawError, read_cases};
