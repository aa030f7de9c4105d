//! The fast engine: hybrid and dense decoders on the CPU, speculation that nobody can observe.
//!
//! For a given model file and seed, the emitted tokens and their log-probabilities are the same bits for every budget,
//! drafter, tree, prefill chunking and thread count, greedy and sampled. Four things make it so: kernels whose order of
//! operations depends on nothing but the row (`kernels`, docs/numerics.md), attention over absolute blocks of positions, a
//! delta state that a verification reads and never writes (`gdn`), and a walk over the tree that is plain decoding with
//! its rows already computed (`generate`).
//!
//! # How to read it
//! 1. `engine` loads a folder and answers requests; `generate` is the round; `session` is one sequence.
//! 2. `model`, `gdn`, `attention`, `mlp` are the target; `plan` says which row sees which.
//! 3. `drafter` and `ngram`, `mtp`, `dflash`, `weaver` propose; `candidates` chooses among their logits.
//! 4. `sampler` and `history` decide tokens; `auto` and `cost` decide budgets; `identity` checks the promise.
//! 5. `trace` records what was drafted and what the target thought of it.
//! 6. `checkpoint` and `weights` read files; `backend` is the only way to device memory and arithmetic.

mod attention;
mod auto;
mod backend;
mod candidates;
mod checkpoint;
mod cost;
mod dflash;
mod drafter;
mod engine;
mod error;
mod gdn;
mod generate;
pub mod gpu;
mod history;
pub mod identity;
pub mod kernels;
mod mlp;
mod model;
mod mtp;
mod ngram;
mod plan;
mod sampler;
mod session;
mod trace;
mod weaver;
mod weights;

pub use backend::KvType;
pub use cost::{CostReport, DraftCost};
pub use engine::{Device, Engine, LoadOptions};
pub use error::FastError;
pub use session::Session;
pub use trace::{TargetEdge, TraceRoots, TracedRound};
