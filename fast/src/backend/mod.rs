//! The seam between model code and devices: buffers that only a backend can read, and the operations on them. Model code
//! never touches a host slice of device memory. The processor is the one device so far; a second becomes a second variant
//! behind these same names.

mod attention;
mod cpu;
mod delta;

pub(crate) use attention::KvCache;
pub(crate) use cpu::{Backend, Buffer, Matrix, Norm, Place};
pub(crate) use delta::DeltaRows;

pub use crate::kernels::KvType;
pub(crate) use crate::kernels::conv::Conv;
pub(crate) use crate::kernels::rope::Table as RopeTable;
pub(crate) use crate::kernels::{KvShape, Mask, Walk};
