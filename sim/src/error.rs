//! Why the simulator refused: one enum of sentences that name the place, what was found, what was expected and the way out.
//! Knows no computation.

/// Why an input was refused or an answer withheld.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// A text on the command line that does not parse.
    #[error("{what} {text:?}: {reason}")]
    Spec {
        /// Which kind of text.
        what: &'static str,
        /// The text.
        text: String,
        /// What is wrong, and how to write it.
        reason: String,
    },
    /// A number outside its range.
    #[error("{what} is {found}, expected {expected}")]
    Number {
        /// Name of the number.
        what: String,
        /// Its value.
        found: f64,
        /// The range.
        expected: &'static str,
    },
    /// Arrays that are not a tree.
    #[error("tree row {row}: {reason} (list parents before children, siblings with distinct ranks)")]
    Shape {
        /// The row.
        row: usize,
        /// What is wrong.
        reason: String,
    },
    /// A verification cost that nobody measured.
    #[error(
        "verification of {rows} rows was not measured, the table {name:?} ends at {largest} (measure more rows or lower the budget)"
    )]
    Unmeasured {
        /// Table.
        name: String,
        /// Rows asked for.
        rows: usize,
        /// Largest measured.
        largest: usize,
    },
    /// A cost table or a profile that contradicts itself.
    #[error("cost table {name:?}: {reason}")]
    Table {
        /// Table.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A trace line that breaks the schema or its own arithmetic.
    #[error("trace line {line}: {reason}")]
    Trace {
        /// 1 is the header.
        line: usize,
        /// What was found and expected.
        reason: String,
    },
    /// Too little data for an answer.
    #[error(
        "{prompts} prompts give {what} within ±{found_percent:.1} % (95 %), expected ±{allowed_percent:.1} % or better \
         (record about {more} more prompts, or allow more noise)"
    )]
    TooNoisy {
        /// The figure.
        what: &'static str,
        /// Prompts at hand.
        prompts: usize,
        /// Half width of the interval, percent of the figure.
        found_percent: f64,
        /// Allowed half width.
        allowed_percent: f64,
        /// Prompts missing, by the square-root law.
        more: usize,
    },
    /// Data that cannot tell the parameters apart.
    #[error("the data cannot determine {what}: {reason}")]
    NotIdentifiable {
        /// Parameter.
        what: &'static str,
        /// Why, and what to record instead.
        reason: String,
    },
    /// A name that is not in the data files.
    #[error("hardware profile {name:?} is unknown, expected one of {known}")]
    UnknownProfile {
        /// Asked for.
        name: String,
        /// All names.
        known: String,
    },
}

/// Checks `0 <= value <= 1`; NaN is refused too.
pub(crate) fn probability(what: &str, value: f64) -> Result<f64, SimError> {
    within(what, value, (0.0..=1.0).contains(&value), "a probability in 0..=1")
}

/// Checks that a duration, size or rate is finite and not negative.
pub(crate) fn nonnegative(what: &str, value: f64) -> Result<f64, SimError> {
    within(what, value, value.is_finite() && value >= 0.0, "a finite number of at least 0")
}

/// Checks that a number is finite and above zero.
pub(crate) fn positive(what: &str, value: f64) -> Result<f64, SimError> {
    within(what, value, value.is_finite() && value > 0.0, "a finite number above 0")
}

fn within(what: &str, value: f64, fine: bool, expected: &'static str) -> Result<f64, SimError> {
    if fine { Ok(value) } else { Err(SimError::Number { what: what.into(), found: value, expected }) }
}
