//! `y = W x` for one or many rows. An output is a sum over chunks of 128 inputs in order; a chunk is one chain of fused
//! multiply-adds from 0 over its rising inputs; the first chunk is the output, later ones are added to it.
//! Lanes run over outputs, so the row count, the tile and the storage change nothing in that order (docs/numerics.md).
//! Parts of codes have their own order ([`super::integer`]) and read 8-bit activations.

use super::activations::{Activations, CodeRows};
use super::integer::CodePanel;
use super::lanes::{Bf16, Kernel, Lanes, Stored};
use super::pack::{PANEL, Packed, Storage};
use super::pool::{Disjoint, Pool};
use super::tile::{Rows, Scaled, Source, tile};
use std::ops::Range;

/// Inputs of a chunk. A law of the arithmetic, not a tuning parameter.
const CHUNK: usize = 128;
/// Rows of the largest tile: 6 rows by 2 AVX2 registers leave 4 of 16 for weights and inputs.
const TILE_ROWS: usize = 6;
/// Multiply-adds below which a second thread costs more than it brings.
const GRAIN: usize = 1 << 15;

/// `y[r] = W x[r]`. `x: [rows, inputs]`, `y: [rows, outputs]`. `scratch` is work memory, whatever was in it.
///
/// # Panics
/// If a length is wrong.
pub fn linear(pool: &Pool, weights: &Packed, x: &[f32], rows: usize, y: &mut [f32], scratch: &mut Activations) {
    let (inputs, outputs) = (weights.inputs(), weights.outputs());
    assert_eq!(x.len(), rows * inputs, "x has {rows} rows of {inputs}");
    assert_eq!(y.len(), rows * outputs, "y has {rows} rows of {outputs}");
    if rows == 0 {
        return;
    }
    let panels = weights.parts.iter().map(|p| p.outputs.div_ceil(PANEL)).sum();
    let y = Disjoint::new(y);
    let signs = weights.signs.as_ref();
    let rotated = match signs {
        Some(signs) if weights.parts.iter().any(|p| p.rotated) => scratch.rotated.rotate(pool, x, rows, signs),
        _ => x,
    };
    let codes = weights.code_groups().next().map(|group| scratch.codes.quantise(pool, x, (rows, inputs), group, signs));
    pool.split(panels, GRAIN.div_ceil(PANEL * inputs * rows), |_, range| {
        pool.vectorise(Panels { weights, x, rotated, codes, rows, y: &y, outputs, range });
    });
}

/// The panels `range` of a matrix, counted through its parts.
struct Panels<'a> {
    weights: &'a Packed,
    x: &'a [f32],
    /// The transform of x, where a part reads it.
    rotated: &'a [f32],
    /// The codes of x, where a part reads them.
    codes: Option<CodeRows<'a>>,
    rows: usize,
    y: &'a Disjoint<f32>,
    outputs: usize,
    range: Range<usize>,
}

/// One panel: 32 outputs (fewer at a part's end) of all rows.
#[derive(Clone, Copy)]
struct Panel<'a> {
    x: &'a [f32],
    inputs: usize,
    rows: usize,
    y: &'a Disjoint<f32>,
    y_stride: usize,
    first_output: usize,
    outputs: usize,
}

impl Kernel for Panels<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let inputs = self.weights.inputs();
        let (mut first_panel, mut first_output) = (0, 0);
        for part in &self.weights.parts {
            let panels = part.outputs.div_ceil(PANEL);
            let from = self.range.start.max(first_panel) - first_panel;
            let to = self.range.end.min(first_panel + panels).saturating_sub(first_panel);
            for panel in from..to.max(from) {
                let job = Panel {
                    x: if part.rotated { self.rotated } else { self.x },
                    inputs,
                    rows: self.rows,
                    y: self.y,
                    y_stride: self.outputs,
                    first_output: first_output + panel * PANEL,
                    outputs: PANEL.min(part.outputs - panel * PANEL),
                };
                let at = panel * inputs * PANEL;
                // SAFETY: the instruction set is the caller's promise; a panel's weights start at `at`; panels of different
                // parts write different outputs.
                unsafe {
                    match &part.storage {
                        Storage::F32(w) => job.run::<L, _>(Unscaled(&w.as_slice()[at..]), true),
                        Storage::Bf16(w) => job.run::<L, _>(Unscaled(&w.as_slice()[at..]), true),
                        Storage::F16(w) => job.run::<L, _>(Unscaled(&w.as_slice()[at..]), false),
                        Storage::Q8 { codes, scales, group } => {
                            let scales = &scales.as_slice()[panel * inputs.div_ceil(*group) * PANEL..];
                            let codes = &codes.as_slice()[at..];
                            job.run::<L, _>(Quantised { codes, scales, group: *group, widened: [0.0; PANEL] }, false);
                        }
                        Storage::Codes(matrix) => {
                            let x = self.codes.expect("x is quantised for parts of codes");
                            let Panel { rows, y, y_stride, first_output, outputs, .. } = job;
                            CodePanel { matrix, panel, x, rows, y, y_stride, first_output, outputs }.run::<L>();
                        }
                    }
                }
            }
            first_panel += panels;
            first_output += part.outputs;
        }
    }
}

/// A panel's stored weights.
trait Weights {
    type At: Source;
    /// The weights from input `k`, and for how many inputs they hold.
    fn at(&mut self, k: usize) -> (Self::At, usize);
}

struct Unscaled<'a, T>(&'a [T]);

impl<T: Stored> Weights for Unscaled<'_, T> {
    type At = Rows<T>;
    #[inline(always)]
    fn at(&mut self, k: usize) -> (Rows<T>, usize) {
        let rows = &self.0[k * PANEL..];
        (Rows { start: rows.as_ptr(), stride: PANEL }, rows.len() / PANEL)
    }
}

struct Quantised<'a> {
    codes: &'a [i8],
    scales: &'a [Bf16],
    group: usize,
    widened: [f32; PANEL],
}

impl Weights for Quantised<'_> {
    type At = Scaled;
    #[inline(always)]
    fn at(&mut self, k: usize) -> (Scaled, usize) {
        let scales = &self.scales[k / self.group * PANEL..][..PANEL];
        for (wide, scale) in self.widened.iter_mut().zip(scales) {
            *wide = f32::from_bits(u32::from(scale.0) << 16);
        }
        let codes = self.codes[k * PANEL..].as_ptr();
        (Scaled { codes, scales: self.widened.as_ptr() }, self.group - k % self.group)
    }
}

/// A chunk of a panel, widened to f32: 16 KiB, half of an L1 cache.
#[repr(align(64))]
struct Widened([f32; CHUNK * PANEL]);

impl Panel<'_> {
    /// Few rows, and all rows of storages that are cheap to widen, read the stored weights in place; many rows of others share
    /// a widened copy of each chunk. (bf16, one Zen 3 core: 6 rows in place 74 GFLOP/s, 8 to 32 rows through the copy 39, 2026-11-30.)
    ///
    /// # Safety
    /// `weights` holds `inputs` rows; the processor has the instruction set of `L`; no other part writes these outputs.
    #[inline(always)]
    unsafe fn run<L: Lanes, W: Weights>(self, mut weights: W, cheap: bool) {
        let mut widened = Widened([0.0; CHUNK * PANEL]);
        for start in (0..self.inputs).step_by(CHUNK) {
            let end = self.inputs.min(start + CHUNK);
            // SAFETY: the caller's promises; `widened` holds the chunk's rows from its start.
            unsafe {
                if cheap || self.rows <= TILE_ROWS {
                    self.chunk::<L, _>(&mut weights, start..end, 0);
                } else {
                    widen::<L, _>(&mut weights, start..end, &mut widened.0);
                    self.chunk::<L, _>(&mut Unscaled(&widened.0), start..end, start);
                }
            }
        }
    }

    /// All rows of the chunk `inputs`; `weights` begin at input `base`.
    ///
    /// # Safety
    /// As `run`.
    #[inline(always)]
    unsafe fn chunk<L: Lanes, W: Weights>(self, weights: &mut W, inputs: Range<usize>, base: usize) {
        let mut row = 0;
        while row < self.rows {
            // SAFETY: the caller's promises.
            unsafe {
                match self.rows - row {
                    1 => self.rows_of::<L, W, 1, 2>(weights, row, inputs.clone(), base),
                    2 => self.rows_of::<L, W, 2, 2>(weights, row, inputs.clone(), base),
                    3 => self.rows_of::<L, W, 3, 2>(weights, row, inputs.clone(), base),
                    4 => self.rows_of::<L, W, 4, 1>(weights, row, inputs.clone(), base),
                    5 => self.rows_of::<L, W, 5, 1>(weights, row, inputs.clone(), base),
                    _ => self.rows_of::<L, W, TILE_ROWS, 1>(weights, row, inputs.clone(), base),
                }
            }
            row += TILE_ROWS.min(self.rows - row);
        }
    }

    /// # Safety
    /// As `run`.
    #[inline(always)]
    unsafe fn rows_of<L: Lanes, W: Weights, const R: usize, const P: usize>(
        self,
        weights: &mut W,
        row: usize,
        inputs: Range<usize>,
        base: usize,
    ) {
        let mut x = [self.x.as_ptr(); R];
        for j in (0..PANEL).step_by(P * L::WIDTH) {
            // SAFETY: the caller's promises; `x` holds `rows` rows of `self.inputs`.
            unsafe {
                let mut partial = [[L::splat(0.0); P]; R];
                let mut k = inputs.start;
                while k < inputs.end {
                    let (from, holds) = weights.at(k - base);
                    let n = holds.min(inputs.end - k);
                    for (r, x_r) in x.iter_mut().enumerate() {
                        *x_r = self.x.as_ptr().add((row + r) * self.inputs + k);
                    }
                    partial = tile(from, j, &x, n, partial);
                    k += n;
                }
                for (r, partial) in partial.iter().enumerate() {
                    for (p, partial) in partial.iter().enumerate() {
                        self.add(row + r, j + p * L::WIDTH, *partial, inputs.start == 0);
                    }
                }
            }
        }
    }

    /// Adds a chunk's sums to the outputs, or makes them the outputs.
    ///
    /// # Safety
    /// As `run`.
    #[inline(always)]
    unsafe fn add<L: Lanes>(self, row: usize, j: usize, partial: L, first: bool) {
        let n = self.outputs.saturating_sub(j).min(L::WIDTH);
        if n == 0 {
            return;
        }
        // SAFETY: the panel's outputs of this row, which no other part touches; short ones pass through `lanes`.
        unsafe {
            let y = self.y.slice(row * self.y_stride + self.first_output + j, n);
            if n == L::WIDTH {
                let sum = if first { partial } else { L::load(y.as_ptr()).add(partial) };
                sum.store(y.as_mut_ptr());
            } else {
                let mut lanes = [0.0; PANEL];
                partial.store(lanes.as_mut_ptr());
                for (y, partial) in y.iter_mut().zip(lanes) {
                    *y = if first { partial } else { *y + partial };
                }
            }
        }
    }
}

/// # Safety
/// `weights` hold the rows `inputs`, at most a chunk; the processor has the instruction set of `L`.
#[inline(always)]
unsafe fn widen<L: Lanes, W: Weights>(weights: &mut W, inputs: Range<usize>, to: &mut [f32; CHUNK * PANEL]) {
    let mut k = inputs.start;
    while k < inputs.end {
        let (from, holds) = weights.at(k);
        let n = holds.min(inputs.end - k);
        let rows = &mut to[(k - inputs.start) * PANEL..][..n * PANEL];
        for (i, row) in rows.chunks_exact_mut(PANEL).enumerate() {
            for (j, lanes) in row.chunks_exact_mut(L::WIDTH).enumerate() {
                // SAFETY: the caller's promises.
                unsafe { from.lanes::<L>(i, j * L::WIDTH).store(lanes.as_mut_ptr()) };
            }
        }
        k += n;
    }
}

#[cfg(test)]
#[path = "linear_tests.rs"]
mod tests;
