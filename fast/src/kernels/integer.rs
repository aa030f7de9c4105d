//! Panels of [`Codes`] times rows of 8-bit activations. Per group the exact integer I of codes times codes; then
//! `c = fma(I, s_x * s_w, c)` over the groups of a chunk of 1024 inputs in order, and the chunks' sums added in order.
//! Lanes run over outputs; neither tile nor rows change that order (docs/numerics.md).

use super::activations::CodeRows;
use super::codes::Codes;
use super::dot::PART;
use super::lanes::{Bf16, Lanes};
use super::pack::PANEL;
use super::pool::Disjoint;

/// Inputs of a chunk. A law of the arithmetic, not a tuning parameter.
pub(super) const CHUNK: usize = 1024;

/// One panel: 32 outputs (fewer at a part's end) of all rows.
#[derive(Clone, Copy)]
pub(super) struct CodePanel<'a> {
    pub matrix: &'a Codes,
    pub panel: usize,
    pub x: CodeRows<'a>,
    pub rows: usize,
    pub y: &'a Disjoint<f32>,
    pub y_stride: usize,
    pub first_output: usize,
    pub outputs: usize,
}

impl CodePanel<'_> {
    /// # Safety
    /// The processor has the instruction set of `L`; no other part writes these outputs; `x` holds `rows` rows of the
    /// matrix's inputs.
    #[inline(always)]
    pub unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller's promises.
        unsafe {
            match self.matrix.zeros {
                None => self.all_rows::<L, false>(),
                Some(_) => self.all_rows::<L, true>(),
            }
        }
    }

    /// # Safety
    /// As `run`; here and below.
    #[inline(always)]
    unsafe fn all_rows<L: Lanes, const FOUR: bool>(self) {
        let mut row = 0;
        while row < self.rows {
            // SAFETY: the caller's promises; here and below.
            unsafe {
                match self.rows - row {
                    1 => self.tile::<L, FOUR, 1, 2>(row),
                    2 => self.tile::<L, FOUR, 2, 1>(row),
                    3 => self.tile::<L, FOUR, 3, 1>(row),
                    _ => self.tile::<L, FOUR, 4, 1>(row),
                }
            }
            row += 4.min(self.rows - row);
        }
    }

    #[inline(always)]
    unsafe fn tile<L: Lanes, const FOUR: bool, const R: usize, const P: usize>(self, row: usize) {
        let (group, groups) = (self.matrix.group, self.matrix.groups());
        let codes = &self.matrix.codes.as_slice()[self.panel * self.matrix.panel_bytes()..][..self.matrix.panel_bytes()];
        let of_panel = self.panel * groups * PANEL;
        let scales = &self.matrix.scales.as_slice()[of_panel..][..groups * PANEL];
        let zeros = self.matrix.zeros.as_ref().map_or([].as_slice(), |z| &z.as_slice()[of_panel..][..groups * PANEL]);
        let group_bytes = group * PANEL / if FOUR { 2 } else { 1 };
        let mut x = [self.x.codes.as_ptr(); R];
        for j in (0..self.outputs).step_by(P * L::WIDTH) {
            // SAFETY: columns from j stay inside the panel's 32; groups inside the rows and the panel.
            unsafe {
                let mut y = [[L::splat(0.0); P]; R];
                for first in (0..groups).step_by(CHUNK / group) {
                    let mut c = [[L::splat(0.0); P]; R];
                    for g in first..groups.min(first + CHUNK / group) {
                        let mut totals = [0; R];
                        for r in 0..R {
                            x[r] = self.x.codes.as_ptr().add(((row + r) * groups + g) * group);
                            totals[r] = *self.x.totals.get_unchecked((row + r) * groups + g);
                        }
                        let at = codes.as_ptr().add(g * group_bytes + 4 * j);
                        let sums = if FOUR {
                            sums_of_four::<L, R, P>(at, &x, group / 4)
                        } else {
                            sums_of_eight::<L, R, P>(at, &x, &totals, group / 4)
                        };
                        for p in 0..P {
                            let column = g * PANEL + j + p * L::WIDTH;
                            let scale = L::load_bf16(scales.as_ptr().add(column).cast::<Bf16>().cast());
                            let zero = if FOUR { L::load_i8(zeros.as_ptr().add(column)) } else { scale };
                            for r in 0..R {
                                let mut sum = L::float(sums[r][p]);
                                if FOUR {
                                    sum = zero.fma(L::splat(-totals[r] as f32), sum);
                                }
                                let s_x = *self.x.scales.get_unchecked((row + r) * groups + g);
                                c[r][p] = sum.fma(L::splat(s_x).mul(scale), c[r][p]);
                            }
                        }
                    }
                    for r in 0..R {
                        for p in 0..P {
                            y[r][p] = if first == 0 { c[r][p] } else { y[r][p].add(c[r][p]) };
                        }
                    }
                }
                for (r, y) in y.iter().enumerate() {
                    for (p, y) in y.iter().enumerate() {
                        self.store(row + r, j + p * L::WIDTH, *y);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store<L: Lanes>(self, row: usize, j: usize, y: L) {
        let n = self.outputs.saturating_sub(j).min(L::WIDTH);
        if n == 0 {
            return;
        }
        // SAFETY: the panel's outputs of this row, which no other part touches; short ones pass through `lanes`.
        unsafe {
            let to = self.y.slice(row * self.y_stride + self.first_output + j, n);
            if n == L::WIDTH {
                y.store(to.as_mut_ptr());
            } else {
                let mut lanes = [0.0; PANEL];
                y.store(lanes.as_mut_ptr());
                to.copy_from_slice(&lanes[..n]);
            }
        }
    }
}

/// The sums of a group of `quads` quads, of `R` rows and `P * L::WIDTH` outputs from the column at `codes`.
///
/// # Safety
/// `quads` lines of 128 bytes at `codes`, `4 * quads` codes at every `x`, and the instruction set of `L`.
#[inline(always)]
unsafe fn sums_of_eight<L: Lanes, const R: usize, const P: usize>(
    codes: *const u8,
    x: &[*const i8; R],
    totals: &[i32; R],
    quads: usize,
) -> [[L::Sum; P]; R] {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [[L::start(0); P]; R];
        for r in 0..R {
            sums[r] = [L::start(totals[r]); P];
        }
        for quad in 0..quads {
            let mut w = [L::codes(codes.add(quad * PANEL * 4)); P];
            for (p, w) in w.iter_mut().enumerate().skip(1) {
                *w = L::codes(codes.add((quad * PANEL + p * L::WIDTH) * 4));
            }
            for r in 0..R {
                let x = L::quad(x[r].add(4 * quad));
                for p in 0..P {
                    sums[r][p] = L::dot(sums[r][p], w[p], x);
                }
            }
        }
        sums
    }
}

/// As [`sums_of_eight`] for 4-bit codes: `quads / 2` lines of 128 bytes.
///
/// # Safety
/// As [`sums_of_eight`]; `quads` is a multiple of [`PART`].
#[inline(always)]
unsafe fn sums_of_four<L: Lanes, const R: usize, const P: usize>(
    codes: *const u8,
    x: &[*const i8; R],
    quads: usize,
) -> [[L::Sum; P]; R] {
    // SAFETY: the caller's promises.
    unsafe {
        let mut sums = [[L::zero(); P]; R];
        for first in (0..quads).step_by(PART) {
            let mut parts = [[L::part(); P]; R];
            for quad in (first..first + PART).step_by(2) {
                let mut w = [L::nibbles(codes.add(quad / 2 * PANEL * 4)); P];
                for (p, w) in w.iter_mut().enumerate().skip(1) {
                    *w = L::nibbles(codes.add((quad / 2 * PANEL + p * L::WIDTH) * 4));
                }
                for r in 0..R {
                    let (even, odd) = (L::quad(x[r].add(4 * quad)), L::quad(x[r].add(4 * quad + 4)));
                    for p in 0..P {
                        parts[r][p] = L::dot_part(L::dot_part(parts[r][p], w[p][0], even), w[p][1], odd);
                    }
                }
            }
            for r in 0..R {
                for p in 0..P {
                    sums[r][p] = L::add_part(sums[r][p], parts[r][p]);
                }
            }
        }
        sums
    }
}

#[cfg(test)]
#[path = "integer_tests.rs"]
mod tests;
