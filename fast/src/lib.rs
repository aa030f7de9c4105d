//! The fast engine.
