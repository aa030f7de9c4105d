//! Softmax attention in blocks of 64 absolute positions (after FlashAttention, arXiv 2205.14135, with a fixed partition).
//! `q' = q * (1 / sqrt(d))`; `s_t` a chain over d; per block its maximum m_b, `p_t = exp(s_t - m_b)`, `l_b` and `o_b` chains
//! over t; then `M = max m_b`, `c_b = exp(m_b - M)`, `L` and `O` chains over blocks, `out = O / L`. Which of the visible
//! positions are committed and which staged changes nothing.

use super::flush::FlushGuard;
use super::kv::{BLOCK, KvCache, KvShape, Mask, Rounded, Store, Tensors};
use super::lanes::{Kernel, Lanes};
use super::layout::Layout;
use super::math::exp_lanes;
use super::pool::{Disjoint, Pool};
use super::tile::{Rows, tile};
use std::ops::Range;

/// Queries of a tile: 3 by 4 AVX2 registers leave 4 of 16 for keys and queries.
const TILE: usize = 3;
/// Value channels of a task.
const CHANNELS: usize = 32;
/// Multiply-adds below which a second thread costs more than it brings.
const GRAIN: usize = 1 << 15;

/// Floats of scratch for `rows` rows of `query_heads` heads at once. With less (at least one row's worth), [`attend`]
/// takes the rows in several turns.
pub fn scratch_len(shape: KvShape, query_heads: usize, rows: usize) -> usize {
    rows * Scratch::per_row(&shape, query_heads)
}

/// Attention of a pass. `q` has the layout `at` (normalised, rotated, not scaled); row r sees what `mask` says of it;
/// `out: [rows, query_heads, head_dim]`.
///
/// # Panics
/// If a length is wrong, a mask exceeds the cache, or a row sees nothing.
pub fn attend(pool: &Pool, cache: &KvCache, q: &[f32], at: Layout, mask: &Mask, out: &mut [f32], scratch: &mut [f32]) {
    let _flush = FlushGuard::new();
    let shape = cache.shape();
    at.check("q", q.len());
    assert_eq!((mask.rows(), shape.head_dim), (at.rows, at.dim), "one mask per row, heads of the cache's size");
    assert!(at.heads.is_multiple_of(shape.heads), "{} query heads share {} kv heads", at.heads, shape.heads);
    assert_eq!(out.len(), at.vectors() * at.dim, "out is [rows, heads, head dim]");
    for row in 0..at.rows {
        assert!(mask.committed(row) <= cache.len() && mask.visible(row) > 0, "row {row} sees {} committed", mask.committed(row));
        assert!(mask.staged(row).iter().all(|&r| r < shape.staged), "row {row} sees rows that cannot be staged");
    }
    let per_row = Scratch::per_row(&shape, at.heads);
    assert!(scratch.len() >= per_row, "scratch of scratch_len");
    let turn = scratch.len() / per_row;
    let row_len = at.heads * at.dim;
    for first in (0..at.rows).step_by(turn) {
        let rows = first..at.rows.min(first + turn);
        let out = &mut out[rows.start * row_len..rows.end * row_len];
        let pass = Pass { pool, shape, heads: at.heads, mask, rows: rows.clone() };
        match &cache.store {
            Store::F32(t) => pass.run(t, q, at, out, Scratch::cut(scratch, &shape, at.heads, rows.len())),
            Store::Bf16(t) => pass.run(t, q, at, out, Scratch::cut(scratch, &shape, at.heads, rows.len())),
        }
    }
}

/// Working memory of some rows. A query is a row's head; queries of a row lie side by side.
struct Scratch<'a> {
    /// `[queries, head_dim]`
    q: &'a mut [f32],
    /// Scores by position, later exp(s - m_b). `[queries, positions]`
    p: &'a mut [f32],
    /// `[queries, staged, padded]`
    staged: &'a mut [f32],
    /// c_b, and L as the last. `[queries, blocks + 1]`
    weights: &'a mut [f32],
}

impl Scratch<'_> {
    fn sizes(shape: &KvShape) -> [usize; 4] {
        let blocks = (shape.capacity + shape.staged).div_ceil(BLOCK);
        // Whole cached blocks are written even where few of their positions are visible.
        [shape.head_dim, blocks.max(shape.blocks()) * BLOCK, shape.staged_padded(), blocks + 1]
    }

    fn per_row(shape: &KvShape, heads: usize) -> usize {
        heads * Self::sizes(shape).iter().sum::<usize>()
    }

    fn cut<'a>(scratch: &'a mut [f32], shape: &KvShape, heads: usize, rows: usize) -> Scratch<'a> {
        let [q, p, staged, weights] = Self::sizes(shape).map(|n| n * heads * rows);
        let (q, rest) = scratch.split_at_mut(q);
        let (p, rest) = rest.split_at_mut(p);
        let (staged, rest) = rest.split_at_mut(staged);
        Scratch { q, p, staged, weights: &mut rest[..weights] }
    }
}

/// Some rows of a call.
struct Pass<'a> {
    pool: &'a Pool,
    shape: KvShape,
    heads: usize,
    mask: &'a Mask,
    rows: Range<usize>,
}

impl Pass<'_> {
    fn run<T: Rounded>(&self, cache: &Tensors<T>, q: &[f32], at: Layout, out: &mut [f32], scratch: Scratch) {
        let [dim, positions, staged, weights] = Scratch::sizes(&self.shape);
        let visible = self.rows.clone().map(|r| self.mask.visible(r)).max().unwrap_or(0);
        let committed = self.rows.clone().map(|r| self.mask.committed(r)).max().unwrap_or(0);
        let (queries, group) = (self.rows.len() * self.heads, self.heads / self.shape.heads);
        let scale = 1.0 / (dim as f32).sqrt();
        for (i, scaled) in scratch.q.chunks_exact_mut(dim).enumerate() {
            let q = &q[at.range(self.rows.start * self.heads + i)];
            scaled.iter_mut().zip(q).for_each(|(to, q)| *to = q * scale);
        }
        let scaled = &*scratch.q;
        let per_head = self.rows.len() * group;

        let blocks = committed.div_ceil(BLOCK);
        let (p, staged_scores) = (Disjoint::new(scratch.p), Disjoint::new(scratch.staged));
        let tasks = self.shape.heads * (blocks + 1);
        self.pool.split(tasks, GRAIN / (BLOCK * dim * per_head) + 1, |_, range| {
            for task in range {
                let (head, block) = (task / (blocks + 1), task % (blocks + 1));
                let (keys, width, to, to_stride, at) = if block < blocks {
                    (cache.key_block(&self.shape, head, block), BLOCK, &p, positions, block * BLOCK)
                } else {
                    (cache.staged_keys(&self.shape, head), staged, &staged_scores, staged, 0)
                };
                self.pool.vectorise(Scores { pass: self, scaled, keys, width, head, to, to_stride, at });
            }
        });

        let weights_of = Disjoint::new(scratch.weights);
        self.pool.split(queries, GRAIN / (8 * visible) + 1, |_, range| {
            for query in range {
                let row = self.rows.start + query / self.heads;
                let (n, committed) = (self.mask.visible(row), self.mask.committed(row));
                // SAFETY: each query's memory belongs to one task.
                let (p, staged_scores, weights) = unsafe {
                    let staged_scores = staged_scores.slice(query * staged, staged);
                    (p.slice(query * positions, n), staged_scores, weights_of.slice(query * weights, weights))
                };
                for (p, &staged) in p[committed..].iter_mut().zip(self.mask.staged(row)) {
                    *p = staged_scores[staged];
                }
                self.pool.vectorise(Softmax { p, weights });
            }
        });

        let (p, weights_of) = (&*scratch.p, &*scratch.weights);
        let out = Disjoint::new(out);
        let slices = dim.div_ceil(CHANNELS);
        self.pool.split(self.shape.heads * slices, GRAIN / (visible * CHANNELS * per_head) + 1, |_, range| {
            for task in range {
                let (head, first) = (task / slices, task % slices * CHANNELS);
                let channels = first..dim.min(first + CHANNELS);
                self.pool.vectorise(Mix { pass: self, cache, head, channels, p, positions, weights: weights_of, out: &out });
            }
        });
    }

    /// Query `i` of a kv head, counted through the rows: its place among all queries.
    fn query(&self, head: usize, i: usize) -> usize {
        let group = self.heads / self.shape.heads;
        i / group * self.heads + head * group + i % group
    }
}

/// Scores of all queries of a kv head against `width` keys, `[d][width]`.
struct Scores<'a, T> {
    pass: &'a Pass<'a>,
    scaled: &'a [f32],
    keys: &'a [T],
    width: usize,
    head: usize,
    to: &'a Disjoint<f32>,
    to_stride: usize,
    at: usize,
}

impl<T: Rounded> Scores<'_, T> {
    /// # Safety
    /// The processor has the instruction set of `L`; `width` is a multiple of `P * L::WIDTH` or P is 1.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize, const P: usize>(&self, first: usize, j: usize) {
        let dim = self.pass.shape.head_dim;
        let keys = Rows { start: self.keys.as_ptr(), stride: self.width };
        // SAFETY: keys are `[dim][width]`; scaled queries have `dim` floats; each task owns its columns of `to`.
        unsafe {
            let mut x = [self.scaled.as_ptr(); R];
            for (r, x) in x.iter_mut().enumerate() {
                *x = self.scaled[self.pass.query(self.head, first + r) * dim..][..dim].as_ptr();
            }
            let scores = tile::<L, _, R, P>(keys, j, &x, dim, [[L::splat(0.0); P]; R]);
            for (r, scores) in scores.iter().enumerate() {
                let at = self.pass.query(self.head, first + r) * self.to_stride + self.at + j;
                let to = self.to.slice(at, P * L::WIDTH);
                for (p, scores) in scores.iter().enumerate() {
                    scores.store(to.as_mut_ptr().add(p * L::WIDTH));
                }
            }
        }
    }
}

impl<T: Rounded> Kernel for Scores<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let queries = self.pass.rows.len() * (self.pass.heads / self.pass.shape.heads);
        let pairs = self.width - self.width % (2 * L::WIDTH);
        for first in (0..queries).step_by(TILE) {
            // SAFETY: the caller's promise; widths are multiples of 16 and so of every `L::WIDTH`.
            unsafe {
                for j in (0..pairs).step_by(2 * L::WIDTH) {
                    match queries - first {
                        1 => self.tile::<L, 1, 2>(first, j),
                        2 => self.tile::<L, 2, 2>(first, j),
                        _ => self.tile::<L, TILE, 2>(first, j),
                    }
                }
                for j in (pairs..self.width).step_by(L::WIDTH) {
                    match queries - first {
                        1 => self.tile::<L, 1, 1>(first, j),
                        2 => self.tile::<L, 2, 1>(first, j),
                        _ => self.tile::<L, TILE, 1>(first, j),
                    }
                }
            }
        }
    }
}

/// Turns a query's visible scores into `exp(s - m_b)` and writes c_b per block and L.
struct Softmax<'a> {
    p: &'a mut [f32],
    weights: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let (weights, total) = self.weights.split_at_mut(self.weights.len() - 1);
        let blocks = self.p.len().div_ceil(BLOCK);
        let mut highest = f32::NEG_INFINITY;
        for block in self.p.chunks(BLOCK).zip(&mut *weights) {
            // SAFETY: the caller's promise.
            *block.1 = unsafe { maximum::<L>(block.0) };
            highest = if *block.1 > highest { *block.1 } else { highest };
        }
        let mut sum = 0f32;
        for (p, weight) in self.p.chunks_mut(BLOCK).zip(&mut weights[..blocks]) {
            // SAFETY: the caller's promise; one lane needs no instruction set.
            let c = unsafe {
                exp_all::<L>(p, *weight);
                exp_lanes(*weight - highest)
            };
            let mut l = 0f32;
            for p in p.iter() {
                l += p;
            }
            // SAFETY: one lane needs no instruction set.
            sum = unsafe { Lanes::fma(l, c, sum) };
            *weight = c;
        }
        total[0] = sum;
    }
}

/// # Safety
/// The processor has the instruction set of `L`.
#[inline(always)]
unsafe fn maximum<L: Lanes>(x: &[f32]) -> f32 {
    let whole = x.len() - x.len() % L::WIDTH;
    // Room for the widest vector; the order of a maximum does not matter.
    let mut lanes = [f32::NEG_INFINITY; 16];
    // SAFETY: the caller's promise; indices stay inside.
    unsafe {
        let mut best = L::splat(f32::NEG_INFINITY);
        for i in (0..whole).step_by(L::WIDTH) {
            best = L::load(x.as_ptr().add(i)).max(best);
        }
        best.store(lanes.as_mut_ptr());
    }
    x[whole..].iter().chain(&lanes).fold(f32::NEG_INFINITY, |best, &x| if x > best { x } else { best })
}

/// `x = exp(x - m)`.
///
/// # Safety
/// The processor has the instruction set of `L`.
#[inline(always)]
unsafe fn exp_all<L: Lanes>(x: &mut [f32], m: f32) {
    let (n, x) = (x.len(), x.as_mut_ptr());
    let whole = n - n % L::WIDTH;
    // SAFETY: the caller's promise; indices stay inside.
    unsafe {
        for i in (0..whole).step_by(L::WIDTH) {
            exp_lanes(L::load(x.add(i)).sub(L::splat(m))).store(x.add(i));
        }
        for i in whole..n {
            *x.add(i) = exp_lanes(*x.add(i) - m);
        }
    }
}

/// The weighted values of a kv head's queries, on some channels.
struct Mix<'a, T> {
    pass: &'a Pass<'a>,
    cache: &'a Tensors<T>,
    head: usize,
    channels: Range<usize>,
    p: &'a [f32],
    positions: usize,
    weights: &'a [f32],
    out: &'a Disjoint<f32>,
}

impl<T: Rounded> Mix<'_, T> {
    /// # Safety
    /// `P * L::WIDTH` channels from `channel`; the processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn channels<L: Lanes, const P: usize>(&self, channel: usize) {
        let (pass, mask) = (self.pass, self.pass.mask);
        let group = pass.heads / pass.shape.heads;
        let visible = pass.rows.clone().map(|r| mask.visible(r)).max().unwrap_or(0);
        for block in 0..visible.div_ceil(BLOCK) {
            let end = (block + 1) * BLOCK;
            let mut row = 0;
            while row < pass.rows.len() {
                // Rows whose whole block is committed share its values; other rows go alone, since their staged rows differ.
                let whole = |row: &usize| mask.committed(pass.rows.start + row) >= end;
                let run = (row..pass.rows.len()).take_while(whole).count().max(1);
                let queries = row * group..(row + run) * group;
                for first in queries.clone().step_by(TILE) {
                    // SAFETY: the caller's promise.
                    unsafe {
                        match queries.end - first {
                            1 => self.tile::<L, 1, P>(block, pass.rows.start + row, first, channel),
                            2 => self.tile::<L, 2, P>(block, pass.rows.start + row, first, channel),
                            _ => self.tile::<L, TILE, P>(block, pass.rows.start + row, first, channel),
                        }
                    }
                }
                row += run;
            }
        }
        for i in 0..pass.rows.len() * group {
            let query = pass.query(self.head, i);
            let weights = Scratch::sizes(&pass.shape)[3];
            let total = self.weights[query * weights + weights - 1];
            // SAFETY: as in `tile`.
            unsafe {
                let out = self.out.slice(query * pass.shape.head_dim + channel, P * L::WIDTH).as_mut_ptr();
                for p in 0..P {
                    L::load(out.add(p * L::WIDTH)).div(L::splat(total)).store(out.add(p * L::WIDTH));
                }
            }
        }
    }

    /// Queries `first..first + R` of the head, which see the block as `row` does.
    ///
    /// # Safety
    /// As `channels`.
    #[inline(always)]
    unsafe fn tile<L: Lanes, const R: usize, const P: usize>(&self, block: usize, row: usize, first: usize, channel: usize) {
        let (shape, mask) = (&self.pass.shape, self.pass.mask);
        let (start, committed) = (block * BLOCK, mask.committed(row));
        let end = mask.visible(row).min(start + BLOCK);
        if end <= start {
            return;
        }
        let cached = committed.clamp(start, end) - start;
        let mut x = [self.p.as_ptr(); R];
        for (r, x) in x.iter_mut().enumerate() {
            *x = self.p[self.pass.query(self.head, first + r) * self.positions + start..][..end - start].as_ptr();
        }
        // SAFETY: the caller's promise; `x` holds the block's visible positions; a block's values are `[64][dim]`; each task
        // owns its channels of its head's queries.
        unsafe {
            let mut o = [[L::splat(0.0); P]; R];
            if cached > 0 {
                let values = self.cache.value_block(shape, self.head, block);
                o = tile(Rows { start: values.as_ptr(), stride: shape.head_dim }, channel, &x, cached, o);
            }
            for t in cached..end - start {
                let staged = mask.staged(row)[start + t - committed];
                let values = self.cache.staged_value(shape, self.head, staged);
                let x_t = x.map(|x| x.add(t));
                o = tile(Rows { start: values.as_ptr(), stride: 0 }, channel, &x_t, 1, o);
            }
            let weights = Scratch::sizes(shape)[3];
            for (r, o) in o.iter().enumerate() {
                let query = self.pass.query(self.head, first + r);
                let c = L::splat(self.weights[query * weights + block]);
                let out = self.out.slice(query * shape.head_dim + channel, P * L::WIDTH).as_mut_ptr();
                for (p, o) in o.iter().enumerate() {
                    let out = out.add(p * L::WIDTH);
                    let so_far = if block == 0 { L::splat(0.0) } else { L::load(out) };
                    o.fma(c, so_far).store(out);
                }
            }
        }
    }
}

impl<T: Rounded> Kernel for Mix<'_, T> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let (mut channel, end) = (self.channels.start, self.channels.end);
        // SAFETY: the caller's promise; channels stay inside the task's.
        unsafe {
            while channel + 2 * L::WIDTH <= end {
                self.channels::<L, 2>(channel);
                channel += 2 * L::WIDTH;
            }
            while channel + L::WIDTH <= end {
                self.channels::<L, 1>(channel);
                channel += L::WIDTH;
            }
            while channel < end {
                self.channels::<f32, 1>(channel);
                channel += 1;
            }
        }
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;
