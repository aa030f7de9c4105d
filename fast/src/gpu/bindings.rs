//! What the shaders declare, as the build script read it: a struct per kernel with its arguments, the constants, the sizes.
//! Knows nothing of devices.

use super::{Bound, Element, Gpu, GpuError, In, Kernel, Out};

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
