//! The delta rule's causal convolution along tree paths: a row's window is itself, its ancestors' raw rows, then the committed
//! tail. `acc = w[0] * oldest`, then a chain of fused multiply-adds towards the newest tap, then silu.

use super::lanes::{Kernel, Lanes};
use super::math::silu_lanes;
use super::pool::{Disjoint, Pool};
use super::topology::Topology;

/// Most taps that a convolution may have.
const MAX_TAPS: usize = 8;
/// Channels of one task.
const BLOCK: usize = 256;
/// Tasks of one part at least.
const GRAIN: usize = 8;

/// A depthwise convolution.
pub struct Conv {
    /// `[taps, channels]`, oldest tap first.
    weights: Vec<f32>,
    taps: usize,
    channels: usize,
}

/// Raw rows, before the convolution: row r is `data[r * stride..][..channels]`.
#[derive(Clone, Copy)]
pub struct RawRows<'a> {
    /// Starts at the first row's first channel.
    pub data: &'a [f32],
    /// Floats from a row to the next.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
}

impl Conv {
    /// From `[channels, taps]` as checkpoints store it, the newest tap last.
    ///
    /// # Panics
    /// If the length is not the product or there are not 2 to 8 taps.
    pub fn new(weights: &[f32], channels: usize, taps: usize) -> Self {
        assert!((2..=MAX_TAPS).contains(&taps), "a convolution of {taps} taps, expected 2 to {MAX_TAPS}");
        assert_eq!(weights.len(), channels * taps, "{channels} channels of {taps} taps");
        let transposed = (0..taps).flat_map(|t| (0..channels).map(move |c| weights[c * taps + t]));
        Self { weights: transposed.collect(), taps, channels }
    }

    /// Floats of the committed tail: `[taps - 1, channels]`, oldest row first; zeros before the start.
    pub fn tail_len(&self) -> usize {
        (self.taps - 1) * self.channels
    }

    /// `out: [rows, channels]` from raw rows and the committed tail, which is only read.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn forward(&self, pool: &Pool, tail: &[f32], raw: RawRows, topology: Topology, out: &mut [f32]) {
        assert_eq!(tail.len(), self.tail_len(), "the tail is [taps - 1, channels]");
        assert_eq!(out.len(), raw.rows * self.channels, "out is [rows, channels]");
        let blocks = self.channels.div_ceil(BLOCK);
        let out = Disjoint::new(out);
        pool.split(raw.rows * blocks, GRAIN, |_, range| {
            for task in range {
                let (row, first) = (task / blocks, task % blocks * BLOCK);
                let n = BLOCK.min(self.channels - first);
                let mut window: [&[f32]; MAX_TAPS] = [&[]; MAX_TAPS];
                let (mut at, mut before) = (Some(row), 0);
                for tap in (0..self.taps).rev() {
                    let source = match at {
                        Some(row) => &raw.data[row * raw.stride..][..self.channels],
                        None => {
                            before += 1;
                            &tail[(self.taps - 1 - before) * self.channels..][..self.channels]
                        }
                    };
                    window[tap] = &source[first..][..n];
                    at = at.and_then(|row| topology.parent(row));
                }
                // SAFETY: each task owns its block of its row.
                let out = unsafe { out.slice(row * self.channels + first, n) };
                pool.vectorise(Block { conv: self, first, window: &window[..self.taps], out });
            }
        });
    }

    /// The tail after the rows `path` (in order) have been committed. Allocates nothing.
    ///
    /// # Panics
    /// If a length or a row is wrong.
    pub fn commit(&self, tail: &mut [f32], raw: RawRows, path: impl ExactSizeIterator<Item = usize>) {
        assert_eq!(tail.len(), self.tail_len(), "the tail is [taps - 1, channels]");
        let kept = (self.taps - 1).saturating_sub(path.len());
        let dropped = self.taps - 1 - kept;
        tail.copy_within(dropped * self.channels.., 0);
        let skip = path.len() - dropped;
        for (slot, row) in path.skip(skip).enumerate() {
            tail[(kept + slot) * self.channels..][..self.channels]
                .copy_from_slice(&raw.data[row * raw.stride..][..self.channels]);
        }
    }
}

struct Block<'a> {
    conv: &'a Conv,
    first: usize,
    window: &'a [&'a [f32]],
    out: &'a mut [f32],
}

impl Block<'_> {
    /// # Safety
    /// `L::WIDTH` channels from `i`; the processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn at<L: Lanes>(&mut self, i: usize) {
        // SAFETY: the caller's promise; every window row and weight row holds the block.
        unsafe {
            let weight = |tap: usize| L::load(self.conv.weights.as_ptr().add(tap * self.conv.channels + self.first + i));
            let mut acc = weight(0).mul(L::load(self.window[0].as_ptr().add(i)));
            for (tap, row) in self.window.iter().enumerate().skip(1) {
                acc = weight(tap).fma(L::load(row.as_ptr().add(i)), acc);
            }
            silu_lanes(acc).store(self.out.as_mut_ptr().add(i));
        }
    }
}

impl Kernel for Block<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let n = self.out.len();
        let whole = n - n % L::WIDTH;
        // SAFETY: the caller's promise; indices stay inside the block.
        unsafe {
            (0..whole).step_by(L::WIDTH).for_each(|i| self.at::<L>(i));
            (whole..n).for_each(|i| self.at::<f32>(i));
        }
    }
}

#[cfg(test)]
#[path = "conv_tests.rs"]
mod tests;
