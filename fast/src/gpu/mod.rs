//! Devices that run the shaders of `kernels/*.metal` behind one small seam: memory, and the dispatch of a kernel with the
//! arguments that its source declares. The host code above it is the same for an NVIDIA GPU and the emulator, so what the emulator
//! proves of it holds for the GPU. An Apple GPU, for which the shaders are written, is not driven yet. Knows nothing of models or of what a kernel computes.

mod bindings;
#[cfg(not(target_os = "macos"))]
mod cuda;
mod emulator;
mod error;
mod memory;
mod parity;

pub use bindings::*;
pub use emulator::Emulator;
pub use error::GpuError;
pub use memory::{Array, Bound, Element, In, Out};
pub use parity::{KernelReport, parity};

use memory::Memory;

/// A kernel of the shaders.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The function's name.
    pub name: &'static str,
    /// The file that holds it.
    pub file: &'static str,
    /// Its place in [`KERNELS`].
    pub index: usize,
}

/// A device.
pub enum Gpu {
    /// Every thread a fiber on the processor.
    Emulator(Emulator),
    /// An NVIDIA GPU.
    #[cfg(not(target_os = "macos"))]
    Cuda(cuda::Cuda),
}

impl Gpu {
    /// The emulator with the lane order of `seed` (0: rising). Errors: no clang++ on this machine.
    pub fn emulator(seed: u32) -> Result<Self, GpuError> {
        Ok(Self::Emulator(Emulator::new(seed)?))
    }

    /// The first NVIDIA GPU. Errors: no driver, no GPU, no NVRTC, each a sentence.
    #[cfg(not(target_os = "macos"))]
    pub fn cuda() -> Result<Self, GpuError> {
        Ok(Self::Cuda(cuda::Cuda::new()?))
    }

    /// NVIDIA GPUs are not driven on macOS.
    #[cfg(target_os = "macos")]
    pub fn cuda() -> Result<Self, GpuError> {
        Err(GpuError::absent("cuda", "macOS, where NVIDIA GPUs are not driven", "`--device emulator`"))
    }

    /// `cuda` or `emulator`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Emulator(_) => "emulator",
            #[cfg(not(target_os = "macos"))]
            Self::Cuda(_) => "cuda",
        }
    }

    /// The device's own name.
    pub fn name(&self) -> String {
        match self {
            Self::Emulator(_) => "SIMT emulator on the processor".into(),
            #[cfg(not(target_os = "macos"))]
            Self::Cuda(cuda) => cuda.name(),
        }
    }

    /// `len` elements of zero bits. Errors: the device has not so much memory.
    pub fn alloc<T: Element>(&self, len: usize) -> Result<Array<T>, GpuError> {
        let bytes = len.max(1) * T::BYTES;
        let memory = match self {
            Self::Emulator(emulator) => Memory::Emulator(emulator.alloc(bytes)),
            #[cfg(not(target_os = "macos"))]
            Self::Cuda(cuda) => Memory::Cuda(cuda.alloc(bytes)?),
        };
        Ok(Array::new(memory, len))
    }

    /// Host data on the device. Errors: as [`alloc`](Self::alloc).
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<Array<T>, GpuError> {
        let array = self.alloc(data.len())?;
        self.write(&array, 0, data)?;
        Ok(array)
    }

    /// Overwrites elements from `first` on.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn write<T: Element>(&self, array: &Array<T>, first: usize, data: &[T]) -> Result<(), GpuError> {
        array.check(first, data.len());
        if data.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(data.len() * T::BYTES);
        data.iter().for_each(|x| x.put(&mut bytes));
        match (self, array.memory()) {
            (Self::Emulator(emulator), Memory::Emulator(to)) => emulator.write(to, first * T::BYTES, &bytes),
            #[cfg(not(target_os = "macos"))]
            (Self::Cuda(cuda), Memory::Cuda(to)) => return cuda.write(to, first * T::BYTES, &bytes),
            #[allow(unreachable_patterns, reason = "a device's memory stays with the device")]
            _ => panic!("memory of another device"),
        }
        Ok(())
    }

    /// `len` elements from `first` on, after all work that was given to the device before.
    ///
    /// # Panics
    /// If they do not lie inside.
    pub fn read<T: Element>(&self, array: &Array<T>, first: usize, len: usize) -> Result<Vec<T>, GpuError> {
        array.check(first, len);
        let mut bytes = vec![0; len * T::BYTES];
        if len == 0 {
            return Ok(Vec::new());
        }
        match (self, array.memory()) {
            (Self::Emulator(emulator), Memory::Emulator(from)) => emulator.read(from, first * T::BYTES, &mut bytes),
            #[cfg(not(target_os = "macos"))]
            (Self::Cuda(cuda), Memory::Cuda(from)) => cuda.read(from, first * T::BYTES, &mut bytes)?,
            #[allow(unreachable_patterns, reason = "a device's memory stays with the device")]
            _ => panic!("memory of another device"),
        }
        Ok(bytes.chunks_exact(T::BYTES).map(T::get).collect())
    }

    /// Waits for all work. Errors: what went wrong in it.
    pub fn synchronise(&self) -> Result<(), GpuError> {
        match self {
            Self::Emulator(_) => Ok(()),
            #[cfg(not(target_os = "macos"))]
            Self::Cuda(cuda) => cuda.synchronise(),
        }
    }

    /// Starts a kernel; called by the bindings, which know its arguments.
    fn dispatch(&self, kernel: &'static Kernel, bound: &[Bound], groups: [u32; 3], threads: u32) -> Result<(), GpuError> {
        if groups.contains(&0) {
            return Ok(());
        }
        match self {
            Self::Emulator(emulator) => emulator.dispatch(kernel, bound, groups, threads),
            #[cfg(not(target_os = "macos"))]
            Self::Cuda(cuda) => cuda.dispatch(kernel, bound, groups, threads),
        }
    }
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
