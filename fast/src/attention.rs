//! Softmax attention of every kind that targets and drafters have: grouped heads, optional q/k norm, partial RoPE, optional
//! output gate and biases. New keys and values go to scratch rows and become part of the cache only when kept.
//! Knows one layer; nothing of residual streams or of who may see whom (the plan says).

use crate::FastError;
use crate::backend::{Backend, Buffer, KvCache, KvShape, Matrix, Norm, Place, RopeTable};
use crate::plan::{Fate, Plan};
use crate::weights::Weights;
use specdec::AttentionDims;
use std::sync::Arc;

/// The weights of one attention layer. The input projection is one matrix with rows `[q | gate | k | v]`.
pub(crate) struct Attention {
    dims: AttentionDims,
    input: Matrix,
    bias: Option<Buffer>,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    output: Matrix,
    rope: Arc<RopeTable>,
}

/// Work memory of an attention pass over at most as many rows as it was planned for.
pub(crate) struct AttentionWork {
    fused: Buffer,
    mixed: Buffer,
    scratch: Buffer,
}

impl AttentionWork {
    /// For `rows` rows of layers of these dimensions, over caches of this shape.
    pub fn new(backend: &Backend, dims: &AttentionDims, shape: KvShape, rows: usize) -> Self {
        let (q, kv) = (dims.query_heads * dims.head_dim, dims.kv_heads * dims.head_dim);
        Self {
            fused: backend.alloc(rows * (2 * q + 2 * kv)),
            mixed: backend.alloc(rows * q),
            scratch: backend.attention_scratch(shape, dims.query_heads, rows),
        }
    }
}

impl Attention {
    /// Reads `q_proj`, `k_proj`, `v_proj`, `o_proj` and the optional norms and biases. `norm: (eps, 1 + w)`.
    pub fn load(
        weights: &Weights,
        dims: AttentionDims,
        hidden: usize,
        norm: (f64, bool),
        rope: Arc<RopeTable>,
    ) -> Result<Self, FastError> {
        let (heads, dim) = (dims.query_heads, dims.head_dim);
        let (q, kv) = (heads * dim, dims.kv_heads * dim);
        let mut parts = if dims.output_gate {
            // The file interleaves [q | gate] per head; here all of q comes first, then all of the gate.
            let order = |row: usize| 2 * dim * (row % q / dim) + dim * (row / q) + row % dim;
            vec![weights.reordered("q_proj", 2 * q, hidden, order)?]
        } else {
            vec![weights.matrix("q_proj", q, hidden)?]
        };
        parts.push(weights.matrix("k_proj", kv, hidden)?);
        parts.push(weights.matrix("v_proj", kv, hidden)?);
        let head_norm = |name| match dims.qk_norm {
            true => weights.norm(name, dim, norm.0, norm.1).map(Some),
            false => Ok(None),
        };
        Ok(Self {
            dims,
            input: weights.stack(parts)?,
            bias: match dims.qkv_bias {
                true => weights.biases(&[("q_proj", q), ("k_proj", kv), ("v_proj", kv)])?,
                false => None,
            },
            q_norm: head_norm("q_norm")?,
            k_norm: head_norm("k_norm")?,
            output: weights.matrix("o_proj", hidden, q)?,
            rope,
        })
    }

    /// A layer without norms, gate or biases whose file holds `[q | k | v]` in one matrix (Weaver).
    pub fn from_fused(dims: AttentionDims, input: Matrix, output: Matrix, rope: Arc<RopeTable>) -> Self {
        Self { dims, input, bias: None, q_norm: None, k_norm: None, output, rope }
    }

    /// `y = attention(x)` for the plan's rows; `x, y: [rows, hidden]`. Their keys and values are then in the cache, or staged.
    pub fn forward(
        &self,
        backend: &Backend,
        plan: &Plan,
        cache: &mut KvCache,
        work: &mut AttentionWork,
        (x, y): (&Buffer, &mut Buffer),
    ) {
        let (d, rows) = (&self.dims, plan.rows());
        let q_width = d.query_heads * d.head_dim;
        let gate_width = if d.output_gate { q_width } else { 0 };
        let kv_width = d.kv_heads * d.head_dim;
        let width = q_width + gate_width + 2 * kv_width;
        let heads = |first, heads| Place::heads(first, rows, heads, d.head_dim).in_rows_of(width);
        let (q, gate) = (heads(0, d.query_heads), heads(q_width, d.query_heads));
        let (k, v) = (heads(q_width + gate_width, d.kv_heads), heads(q_width + gate_width + kv_width, d.kv_heads));
        backend.linear(&self.input, x, 0..rows, &mut work.fused);
        if let Some(bias) = &self.bias {
            backend.add_bias(&mut work.fused, bias, rows);
        }
        if let Some(norm) = &self.q_norm {
            backend.norm_in_place(norm, &mut work.fused, q);
        }
        if let Some(norm) = &self.k_norm {
            backend.norm_in_place(norm, &mut work.fused, k);
        }
        backend.rope(&self.rope, &mut work.fused, q, &plan.positions);
        backend.rope(&self.rope, &mut work.fused, k, &plan.positions);
        match plan.fate {
            Fate::Kept => backend.append(cache, &work.fused, (k, v)),
            Fate::Staged(first) => backend.stage(cache, first, &work.fused, (k, v)),
        }
        backend.attend(cache, (&work.fused, q), &plan.mask, &mut work.mixed, &mut work.scratch);
        if d.output_gate {
            let mixed = Place::heads(0, rows, d.query_heads, d.head_dim);
            backend.sigmoid_gate((&mut work.mixed, mixed), (&work.fused, gate));
        }
        backend.linear(&self.output, &work.mixed, 0..rows, y);
    }

    /// Adds keys and values of rows that are not queried (DFlash's context) to the cache. `fused: [rows, width]` holds this
    /// layer's `[k | v]` from column `first` on; its keys are normed and rotated in place.
    pub fn inject(
        &self,
        backend: &Backend,
        positions: &[u32],
        (fused, width, first): (&mut Buffer, usize, usize),
        cache: &mut KvCache,
    ) {
        let d = &self.dims;
        let heads = |first| Place::heads(first, positions.len(), d.kv_heads, d.head_dim).in_rows_of(width);
        let (k, v) = (heads(first), heads(first + d.kv_heads * d.head_dim));
        if let Some(norm) = &self.k_norm {
            backend.norm_in_place(norm, fused, k);
        }
        backend.rope(&self.rope, fused, k, positions);
        backend.append(cache, fused, (k, v));
    }
}
