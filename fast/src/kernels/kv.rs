//! One layer's key/value cache and the rows staged beside it: a pass stages its rows, attention reads committed and staged
//! ones, and commit copies the accepted path. Elements are rounded to the cache's type before their first use.
//! Keys lie in blocks of 64 absolute positions, `[kv_head][block][d][64]`; values `[kv_head][position][d]`.

use super::buffer::{Buffer, Plain};
use super::lanes::{Bf16, Stored};
use super::layout::Layout;
use half::bf16;
use std::ops::Range;

/// Positions of a block, which starts at a multiple of it. A law of the arithmetic.
pub(super) const BLOCK: usize = 64;
/// Staged rows are padded to whole vectors of 16 lanes.
const PAD: usize = 16;

/// Number type of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// Exact.
    F32,
    /// Rounded to nearest, ties to even.
    Bf16,
}

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Key/value heads.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Positions that can be committed.
    pub capacity: usize,
    /// Rows that can be staged at once.
    pub staged: usize,
}

/// Keys and values of one layer.
#[derive(Clone)]
pub struct KvCache {
    pub(super) store: Store,
    shape: KvShape,
    len: usize,
}

#[derive(Clone)]
pub(super) enum Store {
    F32(Tensors<f32>),
    Bf16(Tensors<Bf16>),
}

#[derive(Clone)]
pub(super) struct Tensors<T> {
    keys: Buffer<T>,
    values: Buffer<T>,
    /// `[kv_head][d][staged, padded]`: scores take lanes over staged rows.
    staged_keys: Buffer<T>,
    /// `[kv_head][staged][d]`
    staged_values: Buffer<T>,
}

impl KvCache {
    /// An empty cache.
    pub fn new(shape: KvShape, kv_type: KvType) -> Self {
        let store = match kv_type {
            KvType::F32 => Store::F32(Tensors::new(&shape)),
            KvType::Bf16 => Store::Bf16(Tensors::new(&shape)),
        };
        Self { store, shape, len: 0 }
    }

    /// Sizes.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Committed positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True before the first commit.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match &self.store {
            Store::F32(t) => t.bytes(),
            Store::Bf16(t) => t.bytes(),
        }
    }

    /// Forgets positions from `len` on.
    ///
    /// # Panics
    /// If fewer are committed.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "{} positions are committed, not {len}", self.len);
        self.len = len;
    }

    /// Commits rows at once: prefill and plain decoding. `at` has `heads` vectors of `head_dim` per row, for k and v alike.
    ///
    /// # Panics
    /// If the layout does not fit or the capacity does not suffice.
    pub fn append(&mut self, k: &[f32], v: &[f32], at: Layout) {
        self.check(k, v, at);
        assert!(self.len + at.rows <= self.shape.capacity, "{} + {} positions exceed {:?}", self.len, at.rows, self.shape);
        for row in 0..at.rows {
            let position = self.len + row;
            match &mut self.store {
                Store::F32(t) => t.put(&self.shape, position, false, |h| vectors(k, v, at, row, h)),
                Store::Bf16(t) => t.put(&self.shape, position, false, |h| vectors(k, v, at, row, h)),
            }
        }
        self.len += at.rows;
    }

    /// Stages rows as `first..first + at.rows`, visible only to rows whose mask lists them.
    ///
    /// # Panics
    /// If the layout does not fit or there is no room.
    pub fn stage(&mut self, first: usize, k: &[f32], v: &[f32], at: Layout) {
        self.check(k, v, at);
        assert!(first + at.rows <= self.shape.staged, "staged rows {first}..+{} exceed {:?}", at.rows, self.shape);
        for row in 0..at.rows {
            match &mut self.store {
                Store::F32(t) => t.put(&self.shape, first + row, true, |h| vectors(k, v, at, row, h)),
                Store::Bf16(t) => t.put(&self.shape, first + row, true, |h| vectors(k, v, at, row, h)),
            }
        }
    }

    /// Commits staged rows, in order.
    ///
    /// # Panics
    /// If a row was never room for, or the capacity does not suffice.
    pub fn commit(&mut self, path: &[usize]) {
        assert!(self.len + path.len() <= self.shape.capacity, "{} + {} positions exceed {:?}", self.len, path.len(), self.shape);
        for &row in path {
            assert!(row < self.shape.staged, "staged row {row} of {:?}", self.shape);
            match &mut self.store {
                Store::F32(t) => t.commit(&self.shape, row, self.len),
                Store::Bf16(t) => t.commit(&self.shape, row, self.len),
            }
            self.len += 1;
        }
    }

    fn check(&self, k: &[f32], v: &[f32], at: Layout) {
        assert_eq!((at.heads, at.dim), (self.shape.heads, self.shape.head_dim), "k and v have the cache's heads");
        at.check("k", k.len());
        at.check("v", v.len());
    }
}

fn vectors<'a>(k: &'a [f32], v: &'a [f32], at: Layout, row: usize, head: usize) -> (&'a [f32], &'a [f32]) {
    let range: Range<usize> = at.range(row * at.heads + head);
    (&k[range.clone()], &v[range])
}

/// A cache element made from an f32.
pub(super) trait Rounded: Stored + Plain {
    fn round(x: f32) -> Self;
}

impl Rounded for f32 {
    fn round(x: f32) -> Self {
        x
    }
}

impl Rounded for Bf16 {
    fn round(x: f32) -> Self {
        Self(bf16::from_f32(x).to_bits())
    }
}

impl KvShape {
    pub(super) fn blocks(&self) -> usize {
        self.capacity.div_ceil(BLOCK)
    }

    pub(super) fn staged_padded(&self) -> usize {
        self.staged.next_multiple_of(PAD)
    }

    fn key(&self, head: usize, position: usize, d: usize) -> usize {
        ((head * self.blocks() + position / BLOCK) * self.head_dim + d) * BLOCK + position % BLOCK
    }

    fn staged_key(&self, head: usize, row: usize, d: usize) -> usize {
        (head * self.head_dim + d) * self.staged_padded() + row
    }
}

impl<T: Rounded> Tensors<T> {
    fn new(shape: &KvShape) -> Self {
        let positions = shape.blocks() * BLOCK;
        let of_heads = |rows: usize| Buffer::zeroed(shape.heads * shape.head_dim * rows);
        Self {
            keys: of_heads(positions),
            values: of_heads(positions),
            staged_keys: of_heads(shape.staged_padded()),
            staged_values: of_heads(shape.staged),
        }
    }

    fn bytes(&self) -> usize {
        let elements = [&self.keys, &self.values, &self.staged_keys, &self.staged_values].map(|b| b.as_slice().len());
        elements.iter().sum::<usize>() * size_of::<T>()
    }

    fn put<'a>(&mut self, shape: &KvShape, slot: usize, staged: bool, of_head: impl Fn(usize) -> (&'a [f32], &'a [f32])) {
        let (keys, values, rows) = if staged {
            (self.staged_keys.as_mut_slice(), self.staged_values.as_mut_slice(), shape.staged)
        } else {
            (self.keys.as_mut_slice(), self.values.as_mut_slice(), shape.blocks() * BLOCK)
        };
        for head in 0..shape.heads {
            let (k, v) = of_head(head);
            for (d, &x) in k.iter().enumerate() {
                let at = if staged { shape.staged_key(head, slot, d) } else { shape.key(head, slot, d) };
                keys[at] = T::round(x);
            }
            let row = &mut values[(head * rows + slot) * shape.head_dim..][..shape.head_dim];
            row.iter_mut().zip(v).for_each(|(to, &x)| *to = T::round(x));
        }
    }

    fn commit(&mut self, shape: &KvShape, row: usize, position: usize) {
        let (dim, positions) = (shape.head_dim, shape.blocks() * BLOCK);
        for head in 0..shape.heads {
            for d in 0..dim {
                self.keys.as_mut_slice()[shape.key(head, position, d)] =
                    self.staged_keys.as_slice()[shape.staged_key(head, row, d)];
            }
            let from = &self.staged_values.as_slice()[(head * shape.staged + row) * dim..][..dim];
            self.values.as_mut_slice()[(head * positions + position) * dim..][..dim].copy_from_slice(from);
        }
    }

    /// `[d][64]` of a block.
    pub(super) fn key_block(&self, shape: &KvShape, head: usize, block: usize) -> &[T] {
        &self.keys.as_slice()[(head * shape.blocks() + block) * shape.head_dim * BLOCK..][..shape.head_dim * BLOCK]
    }

    /// `[64][d]` of a block.
    pub(super) fn value_block(&self, shape: &KvShape, head: usize, block: usize) -> &[T] {
        &self.values.as_slice()[(head * shape.blocks() + block) * BLOCK * shape.head_dim..][..BLOCK * shape.head_dim]
    }

    /// `[d][staged, padded]`
    pub(super) fn staged_keys(&self, shape: &KvShape, head: usize) -> &[T] {
        let len = shape.head_dim * shape.staged_padded();
        &self.staged_keys.as_slice()[head * len..][..len]
    }

    /// `[d]` of a staged row.
    pub(super) fn staged_value(&self, shape: &KvShape, head: usize, row: usize) -> &[T] {
        &self.staged_values.as_slice()[(head * shape.staged + row) * shape.head_dim..][..shape.head_dim]
    }
}

/// What each row of a pass sees: positions `0..committed` of the cache, then its staged rows at the positions that follow.
/// Planned once per pass and shared by all layers.
#[derive(Clone, Debug, Default)]
pub struct Mask {
    rows: Vec<(usize, Range<usize>)>,
    staged: Vec<usize>,
}

impl Mask {
    /// Room for `rows` rows that see `staged` staged rows in all, so that planning allocates nothing.
    pub fn with_capacity(rows: usize, staged: usize) -> Self {
        Self { rows: Vec::with_capacity(rows), staged: Vec::with_capacity(staged) }
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.staged.clear();
    }

    /// Adds a row that sees `committed` positions and then `staged` rows in the order of their positions: the path from the
    /// root to itself in a tree, all rows of the block in DFlash.
    pub fn push(&mut self, committed: usize, staged: impl IntoIterator<Item = usize>) {
        let start = self.staged.len();
        self.staged.extend(staged);
        self.rows.push((committed, start..self.staged.len()));
    }

    /// Rows of the pass.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn committed(&self, row: usize) -> usize {
        self.rows[row].0
    }

    pub(super) fn staged(&self, row: usize) -> &[usize] {
        &self.staged[self.rows[row].1.clone()]
    }

    pub(super) fn visible(&self, row: usize) -> usize {
        self.rows[row].0 + self.rows[row].1.len()
    }
}
