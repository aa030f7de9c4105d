//! Simulator and tuner of draft budgets.
#![forbid(unsafe_code)]

mod error;
mod grow;
mod model;
mod randomness;
mod sampler;
mod sequoia;
mod shape;
mod spec;

pub use error::SimError;
pub use grow::{Grown, ShapeKind};
pub use model::{AcceptanceModel, Law, Scope};
pub use sequoia::{best_tau_by_enumeration, sequoia};
pub use shape::Shape;
pub use spec::AcceptanceSpec;
