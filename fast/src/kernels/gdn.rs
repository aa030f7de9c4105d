//! The gated delta rule as a scan (Yang et al., arXiv 2412.06464, eq. 10), lanes over value columns. Per head and row:
//! `S' = alpha S`; `m = sum_i k_i S'_i` (a chain over rising i from 0); `u = beta (v - m)`; `S = fma(k_i, u, S'_i)`;
//! `o = sum_i q_i S_i` (a chain). Decode, prefill, verification and commit run this one step; verification never writes
//! the committed state.

use super::lanes::{Kernel, Lanes};
use super::pool::{Disjoint, Pool};
use super::topology::{Step, Walk};
use specdec::GdnDims;

/// Value columns of one task: a state of 128 by 32 floats is half of an L1 cache, and 4 AVX2 chains hide an fma's latency.
const COLUMNS: usize = 32;

/// What the recurrence reads: q and k normalised (and q scaled), v, and the gates. Heads lie side by side in a row.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// Row r at `q[r * stride..]`, `[key_heads, key_dim]`.
    pub q: &'a [f32],
    /// Row r at `k[r * stride..]`, `[key_heads, key_dim]`.
    pub k: &'a [f32],
    /// Row r at `v[r * stride..]`, `[value_heads, value_dim]`.
    pub v: &'a [f32],
    /// Floats from a row to the next in q, k and v.
    pub stride: usize,
    /// `[rows, value_heads]`.
    pub alpha: &'a [f32],
    /// `[rows, value_heads]`.
    pub beta: &'a [f32],
}

/// Floats of scratch for [`verify`] with walks of at most `slots` states, and for [`advance`] (`slots` 1).
pub fn scratch_len(pool: &Pool, dims: &GdnDims, slots: usize) -> usize {
    pool.threads() * slots.max(1) * dims.key_dim * COLUMNS
}

/// Verifies a tree: `out[r]` (`[rows, value_heads * value_dim]`) is what plain decoding of r's path gives. `state`
/// (`[value_heads, key_dim, value_dim]`) is only read.
///
/// # Panics
/// If a length is wrong.
pub fn verify(pool: &Pool, dims: &GdnDims, state: &[f32], inputs: Inputs, walk: &Walk, out: &mut [f32], scratch: &mut [f32]) {
    check(dims, state.len(), inputs, walk.rows(), Some(out.len()));
    let per_thread = walk.slots().max(1) * dims.key_dim * COLUMNS;
    assert!(scratch.len() >= pool.threads() * per_thread, "scratch of scratch_len");
    let (out, scratch) = (Disjoint::new(out), Disjoint::new(scratch));
    each_block(pool, dims, |part, head, columns| {
        // SAFETY: each part has its own scratch.
        let slots = unsafe { scratch.slice(part * per_thread, per_thread) };
        pool.vectorise(Verify { block: Block { dims, inputs, head }, columns, state, walk, out: &out, slots });
    });
}

/// Advances the state in place along `rows` (in order): prefill and plain decoding with an output, commit of an accepted
/// path without. `out[r]` as in [`verify`], for rows of the chain.
///
/// # Panics
/// If a length or a row is wrong.
pub fn advance(
    pool: &Pool,
    dims: &GdnDims,
    state: &mut [f32],
    inputs: Inputs,
    rows: Rows,
    out: Option<&mut [f32]>,
    scratch: &mut [f32],
) {
    let last = match rows {
        Rows::First(n) => n,
        Rows::Path(path) => path.iter().map(|&r| r + 1).max().unwrap_or(0),
    };
    check(dims, state.len(), inputs, last, out.as_ref().map(|o| o.len()));
    let per_thread = dims.key_dim * COLUMNS;
    assert!(scratch.len() >= pool.threads() * per_thread, "scratch of scratch_len");
    let mut nothing = [];
    let with_out = out.is_some();
    let (out, scratch, state) = (Disjoint::new(out.unwrap_or(&mut nothing)), Disjoint::new(scratch), Disjoint::new(state));
    each_block(pool, dims, |part, head, columns| {
        // SAFETY: each part has its own scratch.
        let slot = unsafe { scratch.slice(part * per_thread, per_thread) };
        let block = Block { dims, inputs, head };
        pool.vectorise(Advance { block, columns, state: &state, rows, out: with_out.then_some(&out), slot });
    });
}

/// Rows that [`advance`] takes in order.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    /// Rows 0 to n - 1.
    First(usize),
    /// An accepted path.
    Path(&'a [usize]),
}

impl Rows<'_> {
    fn len(self) -> usize {
        match self {
            Self::First(n) => n,
            Self::Path(path) => path.len(),
        }
    }
    fn get(self, i: usize) -> usize {
        match self {
            Self::First(_) => i,
            Self::Path(path) => path[i],
        }
    }
}

fn check(dims: &GdnDims, state: usize, inputs: Inputs, rows: usize, out: Option<usize>) {
    let (keys, values) = (dims.key_heads * dims.key_dim, dims.value_heads * dims.value_dim);
    let holds = |name: &str, len: usize, of_row: usize| {
        let needed = rows.checked_sub(1).map_or(0, |last| last * inputs.stride + of_row);
        assert!(len >= needed, "{name} has {len} floats, {rows} rows need {needed}");
    };
    holds("q", inputs.q.len(), keys);
    holds("k", inputs.k.len(), keys);
    holds("v", inputs.v.len(), values);
    let gates = rows * dims.value_heads;
    assert!(inputs.alpha.len() >= gates && inputs.beta.len() >= gates, "alpha and beta are [rows, value heads]");
    assert_eq!(state, dims.state_len(), "the state is [value heads, key dim, value dim]");
    assert!(out.is_none_or(|len| len >= rows * values), "out is [rows, value heads, value dim]");
}

fn each_block(pool: &Pool, dims: &GdnDims, job: impl Fn(usize, usize, std::ops::Range<usize>) + Sync) {
    let blocks = dims.value_dim.div_ceil(COLUMNS);
    pool.split(dims.value_heads * blocks, 1, |part, range| {
        for task in range {
            let first = task % blocks * COLUMNS;
            job(part, task / blocks, first..dims.value_dim.min(first + COLUMNS));
        }
    });
}

#[derive(Clone, Copy)]
struct Block<'a> {
    dims: &'a GdnDims,
    inputs: Inputs<'a>,
    head: usize,
}

/// A state's columns: row i at `start + i * stride`.
#[derive(Clone, Copy)]
struct Columns {
    start: *const f32,
    stride: usize,
}

impl Block<'_> {
    /// One row on `P * L::WIDTH` columns from `column`: reads the state `from`, writes the new one to `to` (which may be the
    /// same), and returns o (not computed when `read` is false).
    ///
    /// # Safety
    /// Both states hold `key_dim` rows of the columns; the processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn step<L: Lanes, const P: usize>(self, row: usize, column: usize, from: Columns, to: Columns, read: bool) -> [L; P] {
        let Inputs { q, k, v, stride, alpha, beta } = self.inputs;
        let dims = self.dims;
        let key_head = self.head / (dims.value_heads / dims.key_heads);
        let gate = row * dims.value_heads + self.head;
        // SAFETY: `check` has seen that q, k, v and the gates hold the row; the states are the caller's promise.
        unsafe {
            let q = q.as_ptr().add(row * stride + key_head * dims.key_dim);
            let k = k.as_ptr().add(row * stride + key_head * dims.key_dim);
            let v = v.as_ptr().add(row * stride + self.head * dims.value_dim + column);
            let (alpha, beta) = (L::splat(alpha[gate]), L::splat(beta[gate]));
            let mut m = [L::splat(0.0); P];
            for i in 0..dims.key_dim {
                let k_i = L::splat(*k.add(i));
                for (p, m) in m.iter_mut().enumerate() {
                    let decayed = alpha.mul(L::load(from.start.add(i * from.stride + p * L::WIDTH)));
                    *m = k_i.fma(decayed, *m);
                }
            }
            let mut u = m;
            for (p, u) in u.iter_mut().enumerate() {
                *u = beta.mul(L::load(v.add(p * L::WIDTH)).sub(*u));
            }
            let mut o = [L::splat(0.0); P];
            for i in 0..dims.key_dim {
                let (k_i, q_i) = (L::splat(*k.add(i)), L::splat(*q.add(i)));
                for p in 0..P {
                    let decayed = alpha.mul(L::load(from.start.add(i * from.stride + p * L::WIDTH)));
                    let written = k_i.fma(u[p], decayed);
                    written.store(to.start.cast_mut().add(i * to.stride + p * L::WIDTH));
                    if read {
                        o[p] = q_i.fma(written, o[p]);
                    }
                }
            }
            o
        }
    }

    /// # Safety
    /// The output row exists and no other part writes its columns; the processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn write<L: Lanes, const P: usize>(self, out: &Disjoint<f32>, row: usize, column: usize, o: [L; P]) {
        let at = (row * self.dims.value_heads + self.head) * self.dims.value_dim + column;
        // SAFETY: the caller's promise.
        unsafe {
            let out = out.slice(at, P * L::WIDTH);
            for (p, o) in o.into_iter().enumerate() {
                o.store(out.as_mut_ptr().add(p * L::WIDTH));
            }
        }
    }
}

struct Verify<'a> {
    block: Block<'a>,
    columns: std::ops::Range<usize>,
    state: &'a [f32],
    walk: &'a Walk,
    out: &'a Disjoint<f32>,
    slots: &'a mut [f32],
}

impl Verify<'_> {
    /// # Safety
    /// `P * L::WIDTH` columns from `column`; the processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const P: usize>(&mut self, column: usize) {
        let dims = self.block.dims;
        let state = &self.state[self.block.head * dims.key_dim * dims.value_dim + column..];
        let committed = Columns { start: state.as_ptr(), stride: dims.value_dim };
        let slots = self.slots.as_mut_ptr();
        for &Step { row, from, to } in &self.walk.steps {
            // SAFETY: the caller's promise; slots of `key_dim * 32` floats are counted by the walk.
            unsafe {
                let slot = |s: usize| Columns { start: slots.add(s * dims.key_dim * COLUMNS), stride: P * L::WIDTH };
                let o = self.block.step::<L, P>(row, column, from.map_or(committed, slot), slot(to), true);
                self.block.write(self.out, row, column, o);
            }
        }
    }
}

struct Advance<'a> {
    block: Block<'a>,
    columns: std::ops::Range<usize>,
    state: &'a Disjoint<f32>,
    rows: Rows<'a>,
    out: Option<&'a Disjoint<f32>>,
    slot: &'a mut [f32],
}

impl Advance<'_> {
    /// The first row reads the state, the last one writes it; between them it lives in the slot, without gaps.
    ///
    /// # Safety
    /// `P * L::WIDTH` columns from `column`; the processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const P: usize>(&mut self, column: usize) {
        let dims = self.block.dims;
        let at = self.block.head * dims.key_dim * dims.value_dim + column;
        let span = (dims.key_dim - 1) * dims.value_dim + P * L::WIDTH;
        let slot = Columns { start: self.slot.as_mut_ptr(), stride: P * L::WIDTH };
        // SAFETY: the caller's promise; a task owns its columns of the state.
        unsafe {
            let state = Columns { start: self.state.columns(at, span), stride: dims.value_dim };
            for i in 0..self.rows.len() {
                let from = if i == 0 { state } else { slot };
                let to = if i + 1 == self.rows.len() { state } else { slot };
                let row = self.rows.get(i);
                let o = self.block.step::<L, P>(row, column, from, to, self.out.is_some());
                if let Some(out) = self.out {
                    self.block.write(out, row, column, o);
                }
            }
        }
    }
}

/// Runs `columns` over a block's columns: two vectors, one vector, then single lanes.
macro_rules! over_columns {
    ($job:ident) => {
        impl Kernel for $job<'_> {
            #[inline(always)]
            unsafe fn run<L: Lanes>(mut self) {
                let (mut column, end) = (self.columns.start, self.columns.end);
                // SAFETY: the caller's promise; columns stay inside the block.
                unsafe {
                    while column + 2 * L::WIDTH <= end {
                        self.columns::<L, 2>(column);
                        column += 2 * L::WIDTH;
                    }
                    while column + L::WIDTH <= end {
                        self.columns::<L, 1>(column);
                        column += L::WIDTH;
                    }
                    while column < end {
                        self.columns::<f32, 1>(column);
                        column += 1;
                    }
                }
            }
        }
    };
}
over_columns!(Verify);
over_columns!(Advance);

#[cfg(test)]
#[path = "gdn_tests.rs"]
mod tests;
