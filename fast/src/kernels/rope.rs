//! Rotary positions: half-split pairs (i, i + rotary/2) of the leading channels. Angles are computed in f64 on the host and
//! stored as f32, so devices only multiply: `y1 = fma(x1, cos, 0 - x2 * sin)`, `y2 = fma(x2, cos, x1 * sin)`.

use super::lanes::{Kernel, Lanes};
use super::layout::Layout;
use super::pool::{Disjoint, Pool};

/// Vectors below which a second thread costs more than it brings.
const GRAIN: usize = 128;

/// Cosines and sines of all positions.
pub struct Table {
    /// `[positions, half]`
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Table {
    /// Angles `p * theta^(-2 i / rotary_dim)` for positions `0..positions`.
    ///
    /// # Panics
    /// If `rotary_dim` is odd.
    pub fn new(positions: usize, rotary_dim: usize, theta: f64) -> Self {
        let frequencies: Vec<f64> = (0..rotary_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / rotary_dim as f64)).collect();
        Self::from_frequencies(positions, &frequencies)
    }

    /// Angles `p * frequencies[i]`: for scaled variants of RoPE.
    pub fn from_frequencies(positions: usize, frequencies: &[f64]) -> Self {
        let angles = || (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
        let cos = angles().map(|a| a.cos() as f32).collect();
        Self { cos, sin: angles().map(|a| a.sin() as f32).collect(), half: frequencies.len() }
    }

    /// Positions it holds.
    pub fn positions(&self) -> usize {
        self.cos.len().checked_div(self.half).unwrap_or(usize::MAX)
    }

    /// Rotates every head of row r at `positions[r]`, in place. Channels beyond the rotary ones pass.
    ///
    /// # Panics
    /// If a length is wrong or a position lies beyond the table.
    pub fn apply(&self, pool: &Pool, x: &mut [f32], at: Layout, positions: &[u32]) {
        at.check("x", x.len());
        assert_eq!(positions.len(), at.rows, "one position per row");
        assert!(2 * self.half <= at.dim, "a head of {} has {} rotary channels", at.dim, 2 * self.half);
        let x = Disjoint::new(x);
        pool.split(at.vectors(), GRAIN, |_, range| {
            for i in range {
                let row = positions[i / at.heads] as usize * self.half;
                let (cos, sin) = (&self.cos[row..][..self.half], &self.sin[row..][..self.half]);
                // SAFETY: vectors do not overlap (checked), and each belongs to one part.
                let x = unsafe { x.slice(at.start(i), at.dim) };
                let (x1, rest) = x.split_at_mut(self.half);
                pool.vectorise(Rotate { x1, x2: &mut rest[..self.half], cos, sin });
            }
        });
    }
}

struct Rotate<'a> {
    x1: &'a mut [f32],
    x2: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Rotate<'_> {
    /// # Safety
    /// `L::WIDTH` pairs from `i`; the processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn at<L: Lanes>(&mut self, i: usize) {
        // SAFETY: the caller's promise; all four slices have one element per pair.
        unsafe {
            let (p1, p2) = (self.x1.as_mut_ptr().add(i), self.x2.as_mut_ptr().add(i));
            let (x1, x2) = (L::load(p1), L::load(p2));
            let (cos, sin) = (L::load(self.cos.as_ptr().add(i)), L::load(self.sin.as_ptr().add(i)));
            x1.fma(cos, L::splat(0.0).sub(x2.mul(sin))).store(p1);
            x2.fma(cos, x1.mul(sin)).store(p2);
        }
    }
}

impl Kernel for Rotate<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let n = self.x1.len();
        let whole = n - n % L::WIDTH;
        // SAFETY: the caller's promise; indices stay inside.
        unsafe {
            (0..whole).step_by(L::WIDTH).for_each(|i| self.at::<L>(i));
            (whole..n).for_each(|i| self.at::<f32>(i));
        }
    }
}

#[cfg(test)]
#[path = "rope_tests.rs"]
mod tests;
