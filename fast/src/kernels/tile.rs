//! The register tile under linear and attention: `R` rows times `P` vectors of outputs, each output its own chain of fused
//! multiply-adds over the rising inner index. Knows nothing of chunks, blocks or who owns the result.

use super::lanes::{Lanes, Stored};

/// Where a tile reads `w[k][j..]`.
pub(super) trait Source: Copy {
    /// # Safety
    /// `L::WIDTH` elements at row `k`, column `j`, and the instruction set of `L`.
    unsafe fn lanes<L: Lanes>(self, k: usize, j: usize) -> L;
}

/// Rows of elements, `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Rows<T> {
    pub start: *const T,
    pub stride: usize,
}

impl<T: Stored> Source for Rows<T> {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(self, k: usize, j: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe { T::widen(self.start.add(k * self.stride + j)) }
    }
}

/// Rows of 8-bit codes, 32 apart, whose columns each have one scale.
#[derive(Clone, Copy)]
pub(super) struct Scaled {
    pub codes: *const i8,
    pub scales: *const f32,
}

impl Source for Scaled {
    #[inline(always)]
    unsafe fn lanes<L: Lanes>(self, k: usize, j: usize) -> L {
        // SAFETY: the caller's promise. The product of 8 by 8 significant bits is exact.
        unsafe { i8::widen::<L>(self.codes.add(k * 32 + j)).mul(L::load(self.scales.add(j))) }
    }
}

/// `acc[r][p] = fma(w[k][p], x[r][k], acc[r][p])` for `k` in `0..n` in order; `w` starts at column `j`.
///
/// # Safety
/// `n` rows of `P * L::WIDTH` columns from `j` at `w`, `n` floats at every `x`, and the instruction set of `L`.
#[inline(always)]
pub(super) unsafe fn tile<L: Lanes, S: Source, const R: usize, const P: usize>(
    w: S,
    j: usize,
    x: &[*const f32; R],
    n: usize,
    mut acc: [[L; P]; R],
) -> [[L; P]; R] {
    for k in 0..n {
        // SAFETY: the caller's promises.
        unsafe {
            let mut row = [L::splat(0.0); P];
            for (p, w_p) in row.iter_mut().enumerate() {
                *w_p = w.lanes(k, j + p * L::WIDTH);
            }
            for r in 0..R {
                let x_rk = L::splat(x[r].add(k).read());
                for p in 0..P {
                    acc[r][p] = row[p].fma(x_rk, acc[r][p]);
                }
            }
        }
    }
    acc
}
