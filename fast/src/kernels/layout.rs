//! Where vectors lie inside a wider row-major buffer: fused projections leave q, gates, keys and values side by side, and
//! the kernels read and write them in place.

use std::ops::Range;

/// `rows` rows, `row_stride` floats apart, each with `heads` vectors of `dim` floats, `head_stride` apart.
/// The slice that goes with a layout starts at the first vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Rows.
    pub rows: usize,
    /// Floats from a row to the next.
    pub row_stride: usize,
    /// Vectors of a row.
    pub heads: usize,
    /// Floats from a vector to the next.
    pub head_stride: usize,
    /// Floats of a vector.
    pub dim: usize,
}

impl Layout {
    /// Rows of one vector, without gaps.
    pub fn rows(rows: usize, dim: usize) -> Self {
        Self { rows, row_stride: dim, heads: 1, head_stride: dim, dim }
    }

    /// Rows of heads, without gaps.
    pub fn heads(rows: usize, heads: usize, dim: usize) -> Self {
        Self { rows, row_stride: heads * dim, heads, head_stride: dim, dim }
    }

    /// The same vectors inside rows that are `row_stride` floats apart.
    pub fn strided(self, row_stride: usize) -> Self {
        Self { row_stride, ..self }
    }

    /// Vectors in all.
    pub(super) fn vectors(&self) -> usize {
        self.rows * self.heads
    }

    /// Start of vector `i`, counted through the rows.
    pub(super) fn start(&self, i: usize) -> usize {
        i / self.heads * self.row_stride + i % self.heads * self.head_stride
    }

    /// Elements of vector `i`.
    pub(super) fn range(&self, i: usize) -> Range<usize> {
        self.start(i)..self.start(i) + self.dim
    }

    /// Panics unless vectors are apart and end inside `len` floats.
    pub(super) fn check(&self, name: &str, len: usize) {
        let apart = self.heads <= 1 || self.head_stride >= self.dim;
        let end_of_row = self.heads.saturating_sub(1) * self.head_stride + self.dim;
        assert!(apart && (self.rows <= 1 || self.row_stride >= end_of_row), "{name}: vectors of {self:?} overlap");
        let end = if self.vectors() == 0 { 0 } else { (self.rows - 1) * self.row_stride + end_of_row };
        assert!(end <= len, "{name}: {self:?} ends at {end}, the slice at {len}");
    }
}
