//! Kernels whose order of operations is a law: the same bits for any row count, thread count, tiling and instruction set.
//! docs/numerics.md states every order. Free functions over row-major f32 slices; callers own all memory, nothing is
//! allocated in a call.

mod activations;
pub mod attention;
mod buffer;
#[cfg(test)]
mod cases;
mod codes;
pub mod conv;
mod dot;
#[cfg(target_arch = "aarch64")]
mod dot_neon;
#[cfg(target_arch = "x86_64")]
mod dot_x86;
pub mod elementwise;
mod flush;
mod fold;
pub mod gdn;
mod hadamard;
mod integer;
mod kv;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod lanes_neon;
#[cfg(target_arch = "x86_64")]
mod lanes_x86;
mod layout;
pub mod linear;
pub mod math;
pub mod noise;
pub mod norm;
mod pack;
mod pool;
pub mod reduce;
pub mod rope;
mod tile;
mod topology;

pub use activations::{Activations, CodeRows};
pub use flush::FlushGuard;
pub use hadamard::Signs;
pub use kv::{KvCache, KvShape, KvType, Mask};
pub use lanes::Isa;
pub use layout::Layout;
pub use pack::{PackError, Packed};
pub use pool::Pool;
pub use topology::{Topology, Walk};
