//! NVIDIA GPUs: the shaders as CUDA, compiled by NVRTC for the GPU that is there when the device is opened. Driver and
//! compiler are loaded at run time; nothing of CUDA is needed to build. All work goes through one stream, in order.
//! Knows nothing of what a kernel computes.

use super::memory::{self, Argument};
use super::{Bound, GpuError, KERNELS, Kernel};
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DriverError, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts};
use std::sync::Arc;

const SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.cu"));

/// The device.
pub struct Cuda {
    stream: Arc<CudaStream>,
    functions: Vec<CudaFunction>,
    name: String,
}

/// Bytes on the GPU.
pub(super) struct Memory(CudaSlice<u8>);

impl Cuda {
    pub(super) fn new() -> Result<Self, GpuError> {
        // SAFETY: these only look for a library on the search path.
        let (driver, compiler) = unsafe { (cudarc::driver::sys::is_culib_present(), cudarc::nvrtc::sys::is_culib_present()) };
        if !driver {
            return Err(GpuError::absent(
                "cuda",
                "no NVIDIA driver (libcuda)",
                "a machine with an NVIDIA GPU and its driver, or `--device emulator`",
            ));
        }
        let context = CudaContext::new(0).map_err(|e| {
            GpuError::absent(
                "cuda",
                &format!("no usable GPU ({e})"),
                "an NVIDIA GPU that the driver can open, or `--device emulator`",
            )
        })?;
        if !compiler {
            let wanted = "libnvrtc of CUDA 12 or newer on the library path (pip: nvidia-cuda-nvrtc-cu12)";
            return Err(GpuError::absent("cuda", "no run-time compiler (libnvrtc)", wanted));
        }
        // One stream: the driver need not track which stream uses what.
        // SAFETY: no other stream is made.
        unsafe { context.disable_event_tracking() };
        let (major, minor) = context.compute_capability().map_err(|e| failed("asking for its capability", e))?;
        let options = CompileOptions {
            ftz: Some(true),
            prec_sqrt: Some(true),
            prec_div: Some(true),
            fmad: Some(false),
            options: vec![
                "--std=c++17".into(),
                "--device-as-default-execution-space".into(),
                format!("--gpu-architecture=compute_{major}{minor}"),
                // Text on unused functions is noise.
                "--disable-warnings".into(),
            ],
            name: Some("straw.cu".into()),
            ..CompileOptions::default()
        };
        let ptx =
            compile_ptx_with_opts(SOURCE, options).map_err(|e| GpuError::Compile { device: "cuda", message: first_words(&e) })?;
        let module = context.load_module(ptx).map_err(|e| failed("loading the kernels", e))?;
        let functions = KERNELS
            .iter()
            .map(|k| module.load_function(&format!("straw_{}", k.name)).map_err(|e| failed(k.name, e)))
            .collect::<Result<_, _>>()?;
        let name = context.name().map_err(|e| failed("asking for its name", e))?;
        let stream = context.new_stream().map_err(|e| failed("opening a stream", e))?;
        Ok(Self { stream, functions, name })
    }

    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    pub(super) fn alloc(&self, bytes: usize) -> Result<Memory, GpuError> {
        self.stream.alloc_zeros(bytes).map(Memory).map_err(|e| failed(&format!("an allocation of {bytes} bytes"), e))
    }

    pub(super) fn write(&self, to: &Memory, at: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let (start, _record) = to.0.device_ptr(&self.stream);
        // SAFETY: `Array::check` has seen to the bounds; the copy is over when `bytes` ends, because it waits.
        unsafe {
            cudarc::driver::result::memcpy_htod_async(start + at as u64, bytes, self.stream.cu_stream())
                .map_err(|e| failed("a copy to the GPU", e))?;
        }
        self.synchronise()
    }

    pub(super) fn read(&self, from: &Memory, at: usize, bytes: &mut [u8]) -> Result<(), GpuError> {
        let (start, _record) = from.0.device_ptr(&self.stream);
        // SAFETY: as in `write`.
        unsafe {
            cudarc::driver::result::memcpy_dtoh_async(bytes, start + at as u64, self.stream.cu_stream())
                .map_err(|e| failed("a copy from the GPU", e))?;
        }
        self.synchronise()
    }

    pub(super) fn synchronise(&self) -> Result<(), GpuError> {
        self.stream.synchronize().map_err(|e| failed("waiting for its work", e))
    }

    pub(super) fn dispatch(
        &self,
        kernel: &'static Kernel,
        bound: &[Bound],
        groups: [u32; 3],
        threads: u32,
    ) -> Result<(), GpuError> {
        let [x, y, z] = groups;
        let shape = LaunchConfig { grid_dim: (x, y, z), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
        let mut pointers = Vec::with_capacity(bound.len());
        for Bound(argument) in bound {
            match argument {
                Argument::Buffer(memory::Memory::Cuda(of), at, ..) => pointers.push(of.0.device_ptr(&self.stream).0 + *at as u64),
                Argument::Constant(_) => pointers.push(0),
                #[allow(unreachable_patterns, reason = "a device's memory stays with the device")]
                Argument::Buffer(..) => panic!("memory of another device"),
            }
        }
        let mut launch = self.stream.launch_builder(&self.functions[kernel.index]);
        for (Bound(argument), pointer) in bound.iter().zip(&pointers) {
            match argument {
                Argument::Buffer(..) => launch.arg(pointer),
                Argument::Constant(bytes) => launch.arg(Constants::of(bytes)),
            };
        }
        // SAFETY: one argument per parameter of the entry, in its order, of its size: the bindings come from the same source.
        unsafe { launch.launch(shape) }.map(|_| ()).map_err(|e| GpuError::Kernel {
            device: "cuda",
            kernel: kernel.name,
            message: format!("{e} ({groups:?} x {threads})"),
        })
    }
}

/// The bytes of a kernel's struct of constants, as a parameter.
#[repr(transparent)]
struct Constants(u8);

// SAFETY: the driver reads as many bytes from the address as the parameter has, and `of` keeps them all behind it.
unsafe impl cudarc::driver::DeviceRepr for Constants {}

impl Constants {
    fn of(bytes: &[u8]) -> &Self {
        // SAFETY: a transparent wrapper of the first byte; constants are never empty.
        unsafe { &*bytes.as_ptr().cast::<Self>() }
    }
}

fn failed(what: &str, e: DriverError) -> GpuError {
    GpuError::Device { device: "cuda", what: what.into(), message: e.to_string() }
}

fn first_words(e: &CompileError) -> String {
    let text = match e {
        CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
        other => format!("{other:?}"),
    };
    text.lines().filter(|l| l.contains("error")).take(5).collect::<Vec<_>>().join("; ")
}
