//! Kernels whose order of operations is a law: the same bits for any row count, thread count, tiling and instruction set.
//! docs/numerics.md states every order. Free functions over row-major f32 slices; callers own all memory.

mod buffer;
mod flush;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod lanes_neon;
#[cfg(target_arch = "x86_64")]
mod lanes_x86;
pub mod linear;
pub mod math;
mod pack;
mod pool;
mod tile;

pub use flush::FlushGuard;
pub use lanes::Isa;
pub use pack::{PackError, Packed};
pub use pool::Pool;
