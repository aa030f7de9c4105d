//! The exact reference.
