//! The exact reference: every formula once, in f64, to be read beside the papers. Where another engine differs, this one is
//! right or has a test to fix.
//!
//! # How to read it
//! The model, from the inside out: [`ops`] (norms, rotary positions, convolution), [`rows`] (who sees whom in a pass), [`gdn`]
//! (the gated delta rule) with its second witness [`gdn_solve`], [`attention`], [`layer`], [`state`] (what a sequence keeps, and
//! the only function that changes it), [`model`] (the target), `shard` and `weights` (files). Then the drafters `mtp`, `dflash`,
//! `weaver` and `ngram`, what they propose (`draft`), and the round that verifies it (`generate`). `oracle` is the
//! door; `gram` walks the layers for those who calibrate. The law of what is emitted is beside it: [`sample`], [`rules`], [`enumerate`], [`law`].
//!
//! # What it is not
//! Fast, or clever. A tree node copies its parent's whole state; that is why nobody has to believe anything about it.
#![deny(unsafe_code)]

pub mod attention;
mod dflash;
mod draft;
pub mod enumerate;
mod error;
pub mod gdn;
pub mod gdn_solve;
mod generate;
mod gram;
pub mod law;
pub mod layer;
pub mod model;
mod mtp;
mod ngram;
mod number;
pub mod ops;
mod oracle;
pub mod rows;
pub mod rules;
pub mod sample;
mod shard;
pub mod state;
mod weaver;
mod weights;

#[cfg(test)]
mod drafter_tests;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod tree_tests;

pub use error::ReferenceError;
pub use gram::{GramWalk, InputGram};
pub use oracle::Reference;
