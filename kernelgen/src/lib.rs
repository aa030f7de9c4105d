//! One source, three devices: reads the Metal shaders of the engine and writes what other compilers and the host need of
//! them. The engine's build script calls it, so that a host call that disagrees with a shader does not compile.
//!
//! `parse` reads kernels, constants and structs; `bindings` writes the typed host side; `emulator` writes C++ for the SIMT
//! emulator; `cuda` writes CUDA. Knows nothing of what a kernel computes.

mod bindings;
mod cuda;
mod emulator;
mod parse;
mod text;

pub use bindings::rust_bindings;
pub use cuda::cuda_source;
pub use emulator::emulator_source;
pub use parse::{Argument, Field, FieldType, Kernel, Role, ShaderError, Shaders, Size, Struct, ThreadIndex};
