//! The attention operations behind the seam: RoPE, the key/value cache, blocked softmax attention.

use super::{Backend, Buffer, Place, RopeTable};
use crate::kernels::{self, KvShape, KvType, Mask, attention};

/// Keys and values of one layer.
pub(crate) type KvCache = kernels::KvCache;

/// Work memory of attention is planned for as many rows at once as fit into this many elements, at least one.
const SCRATCH: usize = 8 << 20;

impl Backend {
    /// An empty cache for `shape`.
    pub fn kv_cache(&self, shape: KvShape, kv: KvType) -> KvCache {
        KvCache::new(shape, kv)
    }

    /// Work memory for passes of at most `rows` rows over caches of this shape.
    pub fn attention_scratch(&self, shape: KvShape, query_heads: usize, rows: usize) -> Buffer {
        let row = attention::scratch_len(shape, query_heads, 1);
        self.alloc(row * (SCRATCH / row).clamp(1, rows.max(1)))
    }

    /// Rotates the heads of row r to `positions[r]`, where they are.
    pub fn rope(&self, table: &RopeTable, x: &mut Buffer, place: Place, positions: &[u32]) {
        table.apply(self.pool(), &mut x.0[place.first..], place.at, positions);
    }

    /// Commits rows at once. `k` and `v` say where they lie in `rows`.
    pub fn append(&self, cache: &mut KvCache, rows: &Buffer, (k, v): (Place, Place)) {
        cache.append(&rows.0[k.first..], &rows.0[v.first..], k.at);
    }

    /// Stages rows from `first` on: visible only to rows whose mask lists them.
    pub fn stage(&self, cache: &mut KvCache, first: usize, rows: &Buffer, (k, v): (Place, Place)) {
        cache.stage(first, &rows.0[k.first..], &rows.0[v.first..], k.at);
    }

    /// Commits staged rows, in order.
    pub fn commit_staged(&self, cache: &mut KvCache, path: &[usize]) {
        cache.commit(path);
    }

    /// Forgets positions from `len` on.
    pub fn truncate(&self, cache: &mut KvCache, len: usize) {
        cache.truncate(len);
    }

    /// `out: [rows, query_heads, head_dim]`, row r seeing what the mask says of it.
    pub fn attend(&self, cache: &KvCache, (x, q): (&Buffer, Place), mask: &Mask, out: &mut Buffer, scratch: &mut Buffer) {
        let len = q.at.rows * q.at.heads * q.at.dim;
        attention::attend(self.pool(), cache, &x.0[q.first..], q.at, mask, &mut out.0[..len], &mut scratch.0);
    }
}
