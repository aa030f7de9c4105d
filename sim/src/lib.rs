//! Simulator of draft budgets.
