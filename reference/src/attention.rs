//! Softmax attention with grouped heads: the gated kind of Qwen3.5 (output times `sigmoid(gate)`, q/k norm, partial
//! rotary positions) and the dense kinds (Qwen3: q/k norm; Qwen2: biases; Llama: neither), which differ by what is absent.
//! Knows one layer and its key/value history; the rows say who sees whom.

use crate::{
    error::ReferenceError,
    ops::{Linear, Norm, rope, sigmoid, softmax},
    rows::Rows,
    weights::Checkpoint,
};
use ndarray::{Array2, Array3, Array4, Axis, concatenate, s};
use specdec::AttentionDims;

/// One layer's projections.
pub struct Attention {
    pub(crate) dims: AttentionDims,
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) output: Linear,
    pub(crate) query_norm: Option<Norm>,
    pub(crate) key_norm: Option<Norm>,
}

/// Keys (after norm and rotation) and values of all committed positions. `[positions, kv_heads, head_dim]`.
#[derive(Clone, Debug, PartialEq)]
pub struct KvCache {
    /// Keys.
    pub keys: Array3<f64>,
    /// Values.
    pub values: Array3<f64>,
}

impl KvCache {
    /// No positions.
    pub fn new(dims: &AttentionDims) -> Self {
        let empty = Array3::zeros((0, dims.kv_heads, dims.head_dim));
        Self { keys: empty.clone(), values: empty }
    }

    /// Positions held.
    pub(crate) fn len(&self) -> usize {
        self.keys.len_of(Axis(0))
    }

    /// Adds the given rows of new keys and values, in the given order.
    pub fn append(&mut self, keys: &Array3<f64>, values: &Array3<f64>, rows: &[usize]) {
        self.keys = concatenate![Axis(0), self.keys, keys.select(Axis(0), rows)];
        self.values = concatenate![Axis(0), self.values, values.select(Axis(0), rows)];
    }
}

/// Every tensor of one pass through the layer, one entry per row.
pub struct AttentionRows {
    /// Queries after norm and rotation, `[rows, query_heads, head_dim]`.
    pub query: Array3<f64>,
    /// Keys after norm and rotation, `[rows, kv_heads, head_dim]`.
    pub key: Array3<f64>,
    /// Values, `[rows, kv_heads, head_dim]`.
    pub value: Array3<f64>,
    /// Output gate before the sigmoid, `[rows, query_heads, head_dim]`.
    pub gate: Option<Array3<f64>>,
    /// Attention's result before the gate, `[rows, query_heads, head_dim]`.
    pub mixed: Array3<f64>,
    /// After the gate, the same shape.
    pub gated: Array3<f64>,
    /// After the output projection, `[rows, hidden]`.
    pub output: Array2<f64>,
}

impl Attention {
    /// Reads `PREFIXq_proj` and so on; `norm` says how q/k norm weights are stored.
    pub(crate) fn load(
        weights: &Checkpoint,
        prefix: &str,
        dims: AttentionDims,
        hidden: usize,
        norm: impl Fn(ndarray::Array1<f64>) -> Norm,
    ) -> Result<Self, ReferenceError> {
        let (q, kv) = (dims.query_heads * dims.head_dim, dims.kv_heads * dims.head_dim);
        let linear = |name: &str, out, input, biased: bool| -> Result<Linear, ReferenceError> {
            let weight = weights.matrix(&format!("{prefix}{name}.weight"), out, input)?;
            let bias = biased.then(|| weights.vector(&format!("{prefix}{name}.bias"), out)).transpose()?;
            Ok(Linear { weight, bias })
        };
        let head_norm = |name: &str| {
            let weight = || weights.vector(&format!("{prefix}{name}.weight"), dims.head_dim);
            dims.qk_norm.then(weight).transpose().map(|w| w.map(&norm))
        };
        Ok(Self {
            query: linear("q_proj", if dims.output_gate { 2 * q } else { q }, hidden, dims.qkv_bias)?,
            key: linear("k_proj", kv, hidden, dims.qkv_bias)?,
            value: linear("v_proj", kv, hidden, dims.qkv_bias)?,
            output: linear("o_proj", hidden, q, false)?,
            query_norm: head_norm("q_norm")?,
            key_norm: head_norm("k_norm")?,
            dims,
        })
    }

    /// `x: [rows, hidden]`, already normed. Reads the history, writes nothing.
    pub(crate) fn forward(&self, x: &Array2<f64>, rows: &Rows, history: &KvCache) -> AttentionRows {
        let (heads, group) = (self.dims.query_heads, self.dims.query_heads / self.dims.kv_heads);
        let (query, gate) = self.queries(x, &rows.positions);
        let (key, value) = self.keys_and_values(x, &rows.positions);
        let mut mixed = Array3::zeros(query.raw_dim());
        for row in 0..rows.len() {
            let keys = concatenate![Axis(0), history.keys, key.select(Axis(0), &rows.sees[row])];
            let values = concatenate![Axis(0), history.values, value.select(Axis(0), &rows.sees[row])];
            for head in 0..heads {
                let kv_head = head / group;
                let scores = keys.slice(s![.., kv_head, ..]).dot(&query.slice(s![row, head, ..]));
                let weights = softmax((scores / (self.dims.head_dim as f64).sqrt()).view());
                mixed.slice_mut(s![row, head, ..]).assign(&weights.dot(&values.slice(s![.., kv_head, ..])));
            }
        }
        let gated = match &gate {
            Some(gate) => &mixed * &gate.mapv(sigmoid),
            None => mixed.clone(),
        };
        let output = self.output.apply(&flat(&gated));
        AttentionRows { query, key, value, gate, mixed, gated, output }
    }

    /// Keys and values of rows, as the history keeps them. `x: [rows, hidden]`.
    pub(crate) fn keys_and_values(&self, x: &Array2<f64>, positions: &[usize]) -> (Array3<f64>, Array3<f64>) {
        let dims = &self.dims;
        let mut key = heads_of(self.key.apply(x), dims.kv_heads);
        if let Some(norm) = &self.key_norm {
            key = norm.apply(&key);
        }
        rope(&mut key, positions, dims.rotary_dim, dims.rope_theta);
        (key, heads_of(self.value.apply(x), dims.kv_heads))
    }

    /// Queries after norm and rotation, and the gate: the projection holds `[q | gate]` per head.
    fn queries(&self, x: &Array2<f64>, positions: &[usize]) -> (Array3<f64>, Option<Array3<f64>>) {
        let dims = &self.dims;
        let projected = heads_of(self.query.apply(x), dims.query_heads);
        let (mut query, gate) = if dims.output_gate {
            let shape = (x.nrows(), dims.query_heads, 2, dims.head_dim);
            let halves: Array4<f64> = projected.into_shape_with_order(shape).expect("two halves per head");
            let (query_half, gate_half) = (0, 1);
            (halves.slice(s![.., .., query_half, ..]).to_owned(), Some(halves.slice(s![.., .., gate_half, ..]).to_owned()))
        } else {
            (projected, None)
        };
        if let Some(norm) = &self.query_norm {
            query = norm.apply(&query);
        }
        rope(&mut query, positions, dims.rotary_dim, dims.rope_theta);
        (query, gate)
    }
}

/// `[rows, heads * d]` as `[rows, heads, d]`.
pub(crate) fn heads_of(x: Array2<f64>, heads: usize) -> Array3<f64> {
    let (rows, channels) = x.dim();
    x.into_shape_with_order((rows, heads, channels / heads)).expect("heads divide the channels")
}

/// `[rows, heads, d]` as `[rows, heads * d]`.
pub(crate) fn flat(x: &Array3<f64>) -> Array2<f64> {
    let (rows, heads, d) = x.dim();
    x.to_shape((rows, heads * d)).expect("the same elements").into_owned()
}
