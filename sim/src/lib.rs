//! Simulator and tuner of draft budgets.
#![forbid(unsafe_code)]

mod cost;
mod error;
mod grow;
mod model;
mod policy;
mod profile;
mod randomness;
mod replay;
mod sampler;
mod sequoia;
mod shape;
mod simulate;
mod spec;
mod statistics;
mod synthetic;
mod trace;

pub use cost::{ContextCost, CostModel, DraftCost, Price, Roofline, Staircase, VerifyCost};
pub use error::SimError;
pub use grow::{Grown, ShapeKind};
pub use model::{AcceptanceModel, Law, Scope};
pub use policy::{Memory, Policy};
pub use profile::{Arithmetic, Evidence, Llama7b, MeasuredCurve, ModelSize, Profile, Quantity};
pub use replay::{Replay, ReplayRound};
pub use sequoia::{best_tau_by_enumeration, sequoia};
pub use shape::Shape;
pub use simulate::{Outcome, PromptSums, Run, Source, simulate};
pub use spec::AcceptanceSpec;
pub use statistics::Interval;
pub use synthetic::SyntheticTrace;
pub use trace::{Identity, SCHEMA, Trace, TraceHeader, TraceNode, TraceRound, TreeNoise, VERSION};
