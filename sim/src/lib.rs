//! Simulator and tuner of draft budgets: what would tokens per pass and tokens per second be at every budget and tree shape,
//! on this machine, for this workload? No tensors: acceptance comes from a recorded [`Trace`] or a parametric
//! [`AcceptanceModel`], seconds from a [`CostModel`].
//!
//! * Trees: [`ShapeKind::grow`] grows a [`Shape`] with the same code as the engine (specdec's best-first and frontier), or
//!   optimally ([`sequoia()`]).
//! * Expectation: [`AcceptanceModel::tau`] in closed form, [`Replay::tau`] exactly from a trace.
//! * Play: [`simulate()`] one configuration under a [`Policy`]; [`tune()`] every budget and shape.
//! * Fit: [`fit_all`] laws to a trace, [`fit_round_costs`] draft and round costs to timed rounds.
//!
//! Tau counts the bonus token and budgets do not count the root, as specdec defines them.
#![forbid(unsafe_code)]

mod cost;
mod cost_fit;
mod error;
mod fit;
mod grow;
mod hidden;
mod model;
mod policy;
mod policy_spec;
mod profile;
mod randomness;
mod replay;
mod sampler;
mod sequoia;
mod shape;
mod simulate;
mod size;
mod spec;
mod statistics;
mod synthetic;
mod table;
mod trace;
mod tune;

pub use cost::{ContextCost, CostModel, DraftCost, Price, Roofline, Staircase, VerifyCost};
pub use cost_fit::{CostFit, Fitted, TimedRound, fit_round_costs};
pub use error::SimError;
pub use fit::{Family, Goodness, ModelFit, fit_all, fit_model};
pub use grow::{Grown, ShapeKind};
pub use model::{AcceptanceModel, Law, Scope};
pub use policy::{Memory, Policy};
pub use profile::{Arithmetic, Evidence, Llama7b, MeasuredCurve, Profile, Quantity};
pub use replay::{Replay, ReplayRound};
pub use sequoia::{best_tau_by_enumeration, sequoia};
pub use shape::Shape;
pub use simulate::{DrafterSteps, Outcome, PromptSums, Run, Source, simulate};
pub use size::ModelSize;
pub use spec::AcceptanceSpec;
pub use statistics::Interval;
pub use synthetic::SyntheticTrace;
pub use table::{TableFit, fit_table};
pub use trace::{Identity, Roots, SCHEMA, Trace, TraceHeader, TraceNode, TracePrompt, TraceRound, TreeNoise, VERSION};
pub use tune::{CurvePoint, TuneOptions, Tuning, Workload, break_even_alpha, tune};
