//! Typed device memory, and what a kernel's argument may be: an input, an output, constants. Knows no device's details.

use super::emulator;
use half::{bf16, f16};
use std::marker::PhantomData;

/// Numbers, and structs of them, that mean the same bytes to host and shader.
pub trait Element: Copy {
    /// Bytes of one.
    const BYTES: usize;
    /// Appends its bytes.
    fn put(&self, out: &mut Vec<u8>);
    /// From its bytes; more may follow.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! elements {
    ($($t:ty)*) => {$(
        impl Element for $t {
            const BYTES: usize = size_of::<$t>();
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_ne_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$t>()];
                own.copy_from_slice(&bytes[..size_of::<$t>()]);
                Self::from_ne_bytes(own)
            }
        }
    )*};
}
elements!(f32 u32 i32 i8 u8 u16 bf16 f16);

/// `uint4`
impl Element for [u32; 4] {
    const BYTES: usize = 16;
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|x| x.put(out));
    }
    fn get(bytes: &[u8]) -> Self {
        [0, 4, 8, 12].map(|at| u32::get(&bytes[at..]))
    }
}

/// Memory of one device.
pub(super) enum Memory {
    Emulator(emulator::Memory),
    #[cfg(not(target_os = "macos"))]
    Cuda(super::cuda::Memory),
}

/// Elements on a device.
pub struct Array<T> {
    memory: Memory,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Array<T> {
    pub(super) fn new(memory: Memory, len: usize) -> Self {
        Self { memory, len, element: PhantomData }
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// To be read by a kernel.
    pub fn input(&self) -> In<'_, T> {
        self.input_from(0)
    }

    /// To be read by a kernel, which sees element `first` as its first.
    pub fn input_from(&self, first: usize) -> In<'_, T> {
        self.check(first, 0);
        In { array: self, first }
    }

    /// To be written by a kernel.
    pub fn output(&self) -> Out<'_, T> {
        self.output_from(0)
    }

    /// To be written by a kernel, which sees element `first` as its first.
    pub fn output_from(&self, first: usize) -> Out<'_, T> {
        self.check(first, 0);
        Out { array: self, first }
    }

    /// Panics unless `first..first + len` lies inside.
    pub(super) fn check(&self, first: usize, len: usize) {
        assert!(first + len <= self.len, "elements {first}..{} of an array of {}", first + len, self.len);
    }
}

/// An argument that a kernel only reads.
pub struct In<'a, T> {
    array: &'a Array<T>,
    first: usize,
}

/// An argument that a kernel writes.
pub struct Out<'a, T> {
    array: &'a Array<T>,
    first: usize,
}

impl<T> Clone for In<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<'_, T> {}
impl<T> Clone for Out<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<'_, T> {}

/// An argument as a device takes it.
pub struct Bound<'a>(pub(super) Argument<'a>);

pub(super) enum Argument<'a> {
    /// Memory, the first byte, whether the kernel writes it, the argument's name.
    Buffer(&'a Memory, usize, bool, &'static str),
    Constant(Vec<u8>),
}

impl<'a, T: Element> In<'a, T> {
    pub(super) fn bound(&self, name: &'static str) -> Bound<'a> {
        Bound(Argument::Buffer(&self.array.memory, self.first * T::BYTES, false, name))
    }
}

impl<'a, T: Element> Out<'a, T> {
    pub(super) fn bound(&self, name: &'static str) -> Bound<'a> {
        Bound(Argument::Buffer(&self.array.memory, self.first * T::BYTES, true, name))
    }
}

impl Bound<'_> {
    pub(super) fn constant(of: &impl Element) -> Bound<'static> {
        let mut bytes = Vec::new();
        of.put(&mut bytes);
        Bound(Argument::Constant(bytes))
    }
}
