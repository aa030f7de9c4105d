//! Shared support for the cross-crate test binary: where fixtures lie, how the built command is run.
