//! What quantised linears read instead of x: the Hadamard transform of each row, and its 8-bit codes with one scale a group.
//! A row's codes depend on the row alone. Kept by callers as work memory that only ever grows.

use super::buffer::Buffer;
use super::flush::FlushGuard;
use super::hadamard::{BLOCK, Signs};
use super::lanes::{Kernel, Lanes};
use super::pool::{Disjoint, Pool};

/// Largest group ([`super::codes`]).
pub(super) const MAX_GROUP: usize = 128;
/// A group whose largest value is below it counts as zero, so that `127 / max` is finite: 2^-100.
const SMALLEST: f32 = f32::from_bits(27 << 23);
/// Groups below which a second thread costs more than it brings.
const GRAIN: usize = 64;

/// Rows ready to be multiplied.
#[derive(Default)]
pub struct Activations {
    pub(super) codes: CodeBuffers,
    pub(super) rotated: RotatedBuffer,
}

impl Activations {
    /// Transforms (with `signs`) and quantises `x: [rows, inputs]` in groups of 32, 64 or 128: what [`super::linear`] does
    /// first. For benches and comparisons of that stage alone.
    pub fn fill(
        &mut self,
        pool: &Pool,
        x: &[f32],
        (rows, inputs): (usize, usize),
        group: usize,
        signs: Option<&Signs>,
    ) -> CodeRows<'_> {
        self.codes.quantise(pool, x, (rows, inputs), group, signs)
    }
}

/// Memory of [`CodeRows`].
#[derive(Default)]
pub(super) struct CodeBuffers {
    codes: Buffer<i8>,
    scales: Buffer<f32>,
    totals: Buffer<i32>,
}

/// Memory of rows after the transform alone.
#[derive(Default)]
pub(super) struct RotatedBuffer(Buffer<f32>);

/// The codes of some rows: groups of `group` inputs, the last one filled up with zeros.
#[derive(Clone, Copy)]
pub struct CodeRows<'a> {
    /// `[rows, groups * group]`
    pub codes: &'a [i8],
    /// `[rows, groups]`: a value is about `scale * code`.
    pub scales: &'a [f32],
    /// `[rows, groups]`: the sum of a group's codes.
    pub totals: &'a [i32],
}

impl CodeBuffers {
    /// Quantises `x: [rows, inputs]` after the transform, if `signs` are given.
    pub fn quantise(
        &mut self,
        pool: &Pool,
        x: &[f32],
        (rows, inputs): (usize, usize),
        group: usize,
        signs: Option<&Signs>,
    ) -> CodeRows<'_> {
        let groups = inputs.div_ceil(group);
        self.codes.grow(rows * groups * group);
        self.scales.grow(rows * groups);
        self.totals.grow(rows * groups);
        let (codes, scales, totals) = (self.codes.as_mut_slice(), self.scales.as_mut_slice(), self.totals.as_mut_slice());
        let (codes, scales, totals) = (Disjoint::new(codes), Disjoint::new(scales), Disjoint::new(totals));
        pool.split(rows * groups, GRAIN, |_, range| {
            let n = range.len();
            // SAFETY: parts have different groups.
            let (codes, scales, totals) = unsafe {
                (codes.slice(range.start * group, n * group), scales.slice(range.start, n), totals.slice(range.start, n))
            };
            pool.vectorise(Quantise { x, inputs, group, groups, first: range.start, signs, codes, scales, totals });
        });
        let (codes, scales, totals) = (self.codes.as_slice(), self.scales.as_slice(), self.totals.as_slice());
        CodeRows { codes: &codes[..rows * groups * group], scales: &scales[..rows * groups], totals: &totals[..rows * groups] }
    }
}

impl RotatedBuffer {
    /// The transform alone, `[rows, inputs]`.
    pub fn rotate(&mut self, pool: &Pool, x: &[f32], rows: usize, signs: &Signs) -> &[f32] {
        self.0.grow(x.len());
        let inputs = x.len() / rows;
        let to = Disjoint::new(self.0.as_mut_slice());
        pool.split(rows, GRAIN * 64 / inputs + 1, |_, range| {
            let _flush = FlushGuard::new();
            for row in range {
                // SAFETY: parts have different rows.
                let to = unsafe { to.slice(row * inputs, inputs) };
                to.copy_from_slice(&x[row * inputs..][..inputs]);
                pool.vectorise(Rotate { x: to, signs, first: 0 });
            }
        });
        &self.0.as_slice()[..x.len()]
    }
}

/// `x' = H D x` of whole blocks, in place; `x` starts at input `first` of its row.
struct Rotate<'a> {
    x: &'a mut [f32],
    signs: &'a Signs,
    first: usize,
}

impl Kernel for Rotate<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for (i, block) in self.x.chunks_exact_mut(BLOCK).enumerate() {
            let signs = &self.signs.as_slice()[self.first + i * BLOCK..][..BLOCK];
            block.iter_mut().zip(signs).for_each(|(x, d)| *x *= d);
            // SAFETY: a block has 32 floats; the caller's promise.
            unsafe { L::butterflies(block.as_mut_ptr()) };
        }
    }
}

/// Groups from `first` on, counted through the rows.
struct Quantise<'a> {
    x: &'a [f32],
    inputs: usize,
    group: usize,
    groups: usize,
    first: usize,
    signs: Option<&'a Signs>,
    codes: &'a mut [i8],
    scales: &'a mut [f32],
    totals: &'a mut [i32],
}

#[repr(align(64))]
struct Line([f32; MAX_GROUP]);

impl Kernel for Quantise<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let mut values = Line([0.0; MAX_GROUP]);
        for (i, codes) in self.codes.chunks_exact_mut(self.group).enumerate() {
            let (row, start) = ((self.first + i) / self.groups, (self.first + i) % self.groups * self.group);
            let n = self.group.min(self.inputs - start);
            let values = &mut values.0[..self.group];
            values[..n].copy_from_slice(&self.x[row * self.inputs + start..][..n]);
            values[n..].fill(0.0);
            // SAFETY: the caller's promise; groups are multiples of 32 and so of every `L::WIDTH`.
            unsafe {
                if let Some(signs) = self.signs {
                    Rotate { x: &mut values[..n], signs, first: start }.run::<L>();
                }
                let largest = largest::<L>(values);
                if largest < SMALLEST {
                    codes.fill(0);
                    (self.scales[i], self.totals[i]) = (0.0, 0);
                    continue;
                }
                let inverse = L::splat(127.0 / largest);
                for j in (0..values.len()).step_by(L::WIDTH) {
                    L::load(values.as_ptr().add(j)).mul(inverse).store_codes(codes.as_mut_ptr().add(j));
                }
                self.scales[i] = largest / 127.0;
                self.totals[i] = codes.iter().map(|&c| i32::from(c)).sum();
            }
        }
    }
}

/// The largest absolute value; the order of a maximum does not matter.
///
/// # Safety
/// The processor has the instruction set of `L`; `x` is a multiple of `L::WIDTH` long.
#[inline(always)]
unsafe fn largest<L: Lanes>(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    // SAFETY: the caller's promise.
    unsafe {
        let mut best = L::splat(0.0);
        for j in (0..x.len()).step_by(L::WIDTH) {
            let x = L::load(x.as_ptr().add(j));
            best = x.max(L::splat(0.0).sub(x)).max(best);
        }
        best.store(lanes.as_mut_ptr());
    }
    lanes.iter().fold(0.0, |best, &x| if x > best { x } else { best })
}

#[cfg(test)]
#[path = "activations_tests.rs"]
mod tests;
