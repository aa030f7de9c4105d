//! The words that straw's crates exchange: plain data with checked invariants, no tensor arithmetic.
//!
//! # One round
//! The sequence so far ends in the **root**: the last emitted token, whose state is not committed yet.
//! A drafter proposes a [`DraftTree`] under the root, within a [`Budget`]. The target verifies all rows (root and
//! drafted nodes) in one pass and samples one token at every row. [`DraftTree::follow`] walks from the root along the
//! child that equals the sample; the [`Acceptance`] is that path plus the sample at its end. The path's rows are
//! committed, the sample becomes the next root, and a [`RoundRecord`] keeps the counts.
//!
//! # Two definitions, said once
//! * The **root is not in the budget**: a budget of 16 drafts 16 nodes and verifies 17 rows. See [`Budget`].
//! * The **bonus token is in tau**: tau = accepted drafts + 1 per target pass. See [`Acceptance::emitted`].
//!
//! # Positions
//! Token `i` of the sequence (prompt included, from 0) has absolute position `i`. The row of the token at position `p`
//! yields the token of position `p + 1`, and randomness for choosing a token is keyed by the position it will occupy
//! ([`philox`]). So what is emitted at a position cannot depend on how many rows shared a pass.
#![forbid(unsafe_code)]

mod acceptance;
mod budget;
mod budget_table;
mod config;
mod config_json;
mod drafter_config;
mod frontier;
mod generation;
pub mod hadamard;
pub mod philox;
mod quantisation;
mod round;
mod sampling;
mod tree;

pub use acceptance::Acceptance;
pub use budget::{Budget, BudgetError};
pub use budget_table::{BudgetTable, RawTable, TableError, TableMemory};
pub use config::{Architecture, AttentionDims, ConfigError, GdnDims, LayerKind, ModelConfig};
pub use drafter_config::{DflashConfig, WeaverConfig};
pub use frontier::{Frontier, FrontierEntry, GrowPlan};
pub use generation::{DrafterKind, FinishReason, GenerateRequest, Generation, RequestError, Token};
pub use quantisation::{Activations, CodeFormat, QuantScheme};
pub use round::{RoundRecord, StageTimes, tokens_per_pass};
pub use sampling::{SamplingError, SamplingOptions, SamplingParams};
pub use tree::{DraftTree, TreeError};
