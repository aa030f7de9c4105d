//! The SIMT emulator: the shaders as C++, compiled by the machine's clang++ once per source and loaded. Arrays are fenced and
//! the fences are looked at after every kernel; what a kernel declares as input is compared before and after.
//! Knows nothing of what a kernel computes.

use super::memory::{self, Argument};
use super::{Bound, GpuError, Kernel};
use libloading::Library;
use std::cell::UnsafeCell;
use std::collections::hash_map::DefaultHasher;
use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

const SOURCE: &str = include_str!(concat!(env!("OUT_DIR"), "/emulator.cpp"));
/// Compilers that are tried after `STRAW_CLANG`.
const COMPILERS: [&str; 7] = ["clang++", "clang++-20", "clang++-19", "clang++-18", "clang++-17", "clang++-16", "clang++-15"];
/// Words of 8 bytes before and after an array.
const FENCE: usize = 8;

type Entry = unsafe extern "C" fn(u32, *const *mut c_void, *const u32, *const u32, u32, u32, *mut c_char, usize) -> c_int;

/// The device.
pub struct Emulator {
    entry: Entry,
    _library: Library,
    seed: u32,
    threads: u32,
    checked: bool,
    /// Held while the host or a kernel touches memory.
    turn: Mutex<()>,
}

/// Zeroed bytes between two fences of a pattern of their own.
pub(super) struct Memory {
    words: UnsafeCell<Vec<u64>>,
    bytes: usize,
    fence: u64,
}

// SAFETY: the words are only touched while `Emulator::turn` is held; a memory's emulator is the one that made it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        // Signalling NaNs: arithmetic on a fence that was read changes the bits, and a copy carries another array's.
        let half = u64::from(0x7f80_0001 | MADE.fetch_add(1, Ordering::Relaxed) << 1 & 0x003f_fffe);
        let fence = half << 32 | half;
        let mut words = vec![fence; bytes.div_ceil(8) + 2 * FENCE];
        let end = words.len() - FENCE;
        words[FENCE..end].fill(0);
        // What the last word has beyond the array belongs to the fence.
        if !bytes.is_multiple_of(8) {
            words[end - 1] = fence & !own_bits(bytes);
        }
        Self { words: UnsafeCell::new(words), bytes, fence }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the vector is never resized, so the pointer stays; the fence lies before it.
        unsafe { (*self.words.get()).as_mut_ptr().add(FENCE).cast() }
    }

    /// # Safety
    /// `Emulator::turn` is held.
    unsafe fn words(&self) -> &[u64] {
        // SAFETY: the caller's promise.
        unsafe { &*self.words.get() }
    }

    /// # Safety
    /// As `words`.
    unsafe fn fenced(&self) -> bool {
        // SAFETY: the caller's promise.
        let words = unsafe { self.words() };
        let end = words.len() - FENCE;
        let tail = !own_bits(self.bytes);
        let last = self.bytes.is_multiple_of(8) || words[end - 1] & tail == self.fence & tail;
        last && words[..FENCE].iter().chain(&words[end..]).all(|&w| w == self.fence)
    }
}

/// The bits of an array's last word that are its own, on a little-endian machine.
fn own_bits(bytes: usize) -> u64 {
    (1u64 << (8 * (bytes % 8))) - 1
}

impl Emulator {
    /// The engine's shaders. `seed` chooses the order of groups, simdgroups and lanes; 0 is the rising one. Results do not
    /// depend on it unless a shader is wrong. Errors: no clang++, or one that refuses.
    pub fn new(seed: u32) -> Result<Self, GpuError> {
        Self::from_source(SOURCE, seed)
    }

    /// The C++ that [`new`](Self::new) compiles, for whoever wants to break it.
    pub fn source() -> &'static str {
        SOURCE
    }

    /// As [`new`](Self::new) with other C++.
    pub fn from_source(source: &str, seed: u32) -> Result<Self, GpuError> {
        let path = library(source)?;
        let refused = |e: libloading::Error| GpuError::Compile { device: "emulator", message: e.to_string() };
        // SAFETY: the library was built from our source just now or in an earlier run; it has no initialisers that could
        // break a promise of Rust's, and its entry has the declared type.
        let (library, entry) = unsafe {
            let library = Library::new(&path).map_err(refused)?;
            let entry = *library.get::<Entry>(b"straw_emulate").map_err(refused)?;
            (library, entry)
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Ok(Self { entry, _library: library, seed, threads, checked: true, turn: Mutex::new(()) })
    }

    /// Without comparing inputs before and after: for whole models.
    pub fn unchecked(self) -> Self {
        Self { checked: false, ..self }
    }

    pub(super) fn alloc(&self, bytes: usize) -> Memory {
        Memory::new(bytes)
    }

    pub(super) fn write(&self, to: &Memory, at: usize, bytes: &[u8]) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: `Array::check` has seen to the bounds; the turn is ours.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.start().add(at), bytes.len()) };
    }

    pub(super) fn read(&self, from: &Memory, at: usize, bytes: &mut [u8]) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from.start().add(at), bytes.as_mut_ptr(), bytes.len()) };
    }

    pub(super) fn dispatch(
        &self,
        kernel: &'static Kernel,
        bound: &[Bound],
        groups: [u32; 3],
        threads: u32,
    ) -> Result<(), GpuError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = |message: String| GpuError::Kernel { device: "emulator", kernel: kernel.name, message };
        let mut buffers: Vec<(&Memory, bool, &str)> = Vec::new();
        let mut arguments: Vec<*mut c_void> = Vec::new();
        for Bound(argument) in bound {
            arguments.push(match argument {
                Argument::Constant(bytes) => bytes.as_ptr().cast_mut().cast(),
                Argument::Buffer(memory::Memory::Emulator(of), at, written, name) => {
                    buffers.push((of, *written, name));
                    // SAFETY: `Array` has seen to it that the first byte lies inside or at the end.
                    unsafe { of.start().add(*at).cast() }
                }
                #[allow(unreachable_patterns, reason = "a device's memory stays with the device")]
                Argument::Buffer(..) => panic!("memory of another device"),
            });
        }
        let written: Vec<*mut u8> = buffers.iter().filter(|b| b.1).map(|b| b.0.start()).collect();
        let inputs: Vec<(&Memory, &str)> = match self.checked {
            true => buffers.iter().filter(|b| !written.contains(&b.0.start())).map(|b| (b.0, b.2)).collect(),
            false => vec![],
        };
        // SAFETY: the turn is ours, here and below.
        let before: Vec<u64> = inputs.iter().map(|(m, _)| digest(unsafe { m.words() })).collect();
        let mut message: [c_char; 256] = [0; 256];
        // SAFETY: one pointer per declared argument, in the order of the table, alive during the call; constants are only
        // read; grid and group have three numbers; the message has its length.
        let rc = unsafe {
            let (size, message) = ([threads, 1, 1], &mut message);
            let (number, room) = (kernel.index as u32, message.len());
            (self.entry)(
                number,
                arguments.as_ptr(),
                groups.as_ptr(),
                size.as_ptr(),
                self.seed,
                self.threads,
                message.as_mut_ptr(),
                room,
            )
        };
        if rc != 0 {
            // SAFETY: the entry ends its message with a zero inside the room.
            return Err(fault(unsafe { CStr::from_ptr(message.as_ptr()) }.to_string_lossy().into_owned()));
        }
        for &(memory, _, name) in &buffers {
            // SAFETY: as above.
            if !unsafe { memory.fenced() } {
                return Err(fault(format!("a write outside the array bound as {name}")));
            }
        }
        for ((memory, name), before) in inputs.iter().zip(before) {
            // SAFETY: as above.
            if digest(unsafe { memory.words() }) != before {
                return Err(fault(format!("a write to {name}, which the kernel declares as an input")));
            }
        }
        Ok(())
    }
}

fn digest(words: &[u64]) -> u64 {
    words.iter().fold(0xcbf2_9ce4_8422_2325, |h, &w| (h ^ w).wrapping_mul(0x0100_0000_01b3).rotate_left(17))
}

/// The compiled source: from the cache, or made now.
fn library(source: &str) -> Result<PathBuf, GpuError> {
    let compiler = compiler()?;
    let flags = flags();
    let mut hasher = DefaultHasher::new();
    (source, &compiler, &flags, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
    let folder = cache()?;
    let path = folder.join(format!("emulator-{:016x}.so", hasher.finish()));
    if path.exists() {
        return Ok(path);
    }
    let failed = |what: &str, e: &dyn std::fmt::Display| GpuError::Device {
        device: "emulator",
        what: format!("{what} in {}", folder.display()),
        message: e.to_string(),
    };
    // Several processes may come here at once: each works under a name of its own, the last rename wins.
    let own = folder.join(format!("emulator-{:016x}-{}", hasher.finish(), std::process::id()));
    let (text, made) = (own.with_extension("cpp"), own.with_extension("part"));
    fs::write(&text, source).map_err(|e| failed("writing the emulator's source", &e))?;
    let output = Command::new(&compiler).args(&flags).arg("-o").arg(&made).arg(&text).output();
    let _ = fs::remove_file(&text);
    let output = output.map_err(|e| failed("starting the compiler", &e))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        let message = words.lines().filter(|l| l.contains("error")).take(5).collect::<Vec<_>>().join("; ");
        return Err(GpuError::Compile { device: "emulator", message });
    }
    fs::rename(&made, &path).map_err(|e| failed("keeping the emulator", &e))?;
    Ok(path)
}

fn compiler() -> Result<String, GpuError> {
    let wanted = env::var("STRAW_CLANG").ok();
    let works = |name: &str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    wanted.into_iter().chain(COMPILERS.map(String::from)).find(|name| works(name)).ok_or_else(|| {
        GpuError::absent(
            "emulator",
            "no clang++",
            "clang++ 15 or newer on the PATH or named by STRAW_CLANG (Debian: apt-get install clang)",
        )
    })
}

fn flags() -> Vec<&'static str> {
    let mut flags = vec!["-std=c++20", "-O2", "-shared", "-fPIC", "-pthread", "-w", "-fvisibility=hidden"];
    // A call's place identifies a meeting; products and sums round each by themselves.
    flags.extend(["-fno-optimize-sibling-calls", "-ffp-contract=off", "-fno-strict-aliasing"]);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx2") {
        flags.extend(["-mfma", "-mavx2"]);
    }
    flags
}

/// A folder of the user's own: a library in a folder that others can write would not be ours.
fn cache() -> Result<PathBuf, GpuError> {
    let set = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("STRAW_CACHE").or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("straw")));
    let base = base.or_else(|| set("HOME").map(|p| p.join(".cache/straw"))).ok_or_else(|| {
        GpuError::absent("emulator", "no folder for the compiled emulator", "HOME, XDG_CACHE_HOME or STRAW_CACHE to be set")
    })?;
    let made = fs::create_dir_all(&base);
    let failed = |e| GpuError::Device { device: "emulator", what: format!("making {}", base.display()), message: format!("{e}") };
    made.map_err(failed)?;
    Ok(absolute(&base))
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
