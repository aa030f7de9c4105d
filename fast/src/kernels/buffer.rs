//! Zeroed memory that starts on a cache line, so that no 32- or 64-byte load of a packed row straddles two lines.

use super::lanes::{Bf16, F16};
use std::marker::PhantomData;

/// Elements of which every bit pattern is a value.
///
/// # Safety
/// No padding, no invalid bit patterns, alignment at most 64.
pub(super) unsafe trait Plain: Copy {}
// SAFETY: numbers, and transparent wrappers of them, here and below.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for Bf16 {}
// SAFETY: as above.
unsafe impl Plain for F16 {}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A fixed number of elements.
#[derive(Clone)]
pub(super) struct Buffer<T> {
    lines: Vec<Line>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Plain> Default for Buffer<T> {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl<T: Plain> Buffer<T> {
    pub(super) fn zeroed(len: usize) -> Self {
        let lines = vec![Line([0; 64]); (len * size_of::<T>()).div_ceil(64)];
        Self { lines, len, element: PhantomData }
    }

    /// At least `len` elements from now on; what was in them is lost when it grows.
    pub(super) fn grow(&mut self, len: usize) {
        if self.len < len {
            *self = Self::zeroed(len);
        }
    }

    pub(super) fn as_slice(&self) -> &[T] {
        // SAFETY: the lines hold at least `len` elements; zero or written bytes are values of a plain type.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in `as_slice`, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
