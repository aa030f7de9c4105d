//! Gated DeltaNet (arXiv 2412.06464): the recurrence of one token, and the layer around it.
//! `S <- alpha S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q`: decay, then predict, write, then read.
//! Every row keeps its own copy of the state, made from its parent's: the obviously right way, and the witness for
//! every way that copies less.

use crate::{
    attention::{flat, heads_of},
    error::ReferenceError,
    ops::{Linear, Norm, causal_conv, l2_norm, sigmoid, silu, softplus},
    rows::Rows,
    weights::Checkpoint,
};
use ndarray::{Array1, Array2, Array3, ArrayView1, ArrayView2, Axis, concatenate, s};
use specdec::GdnDims;

/// One layer's weights.
pub struct GatedDeltaNet {
    dims: GdnDims,
    qkv: Linear,
    z: Linear,
    b: Linear,
    a: Linear,
    taps: Array2<f64>,
    a_log: Array1<f64>,
    dt_bias: Array1<f64>,
    norm: Norm,
    output: Linear,
}

/// What one sequence keeps of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct GdnState {
    /// The last `K - 1` rows before convolution and activation, oldest first, `[K - 1, channels]`.
    pub tail: Array2<f64>,
    /// `S`, `[value_heads, key_dim, value_dim]`.
    pub delta: Array3<f64>,
}

impl GdnState {
    /// Before the first token.
    pub fn new(dims: &GdnDims) -> Self {
        Self {
            tail: Array2::zeros((dims.conv_kernel - 1, dims.conv_channels())),
            delta: Array3::zeros((dims.value_heads, dims.key_dim, dims.value_dim)),
        }
    }
}

/// What the recurrence takes for every row. Queries and keys are already normalised and repeated to the value heads,
/// and queries scaled by `key_dim^-1/2`.
pub struct DeltaInputs {
    /// `[rows, value_heads, key_dim]`.
    pub query: Array3<f64>,
    /// `[rows, value_heads, key_dim]`.
    pub key: Array3<f64>,
    /// `[rows, value_heads, value_dim]`.
    pub value: Array3<f64>,
    /// Write strength in (0, 1), `[rows, value_heads]`.
    pub beta: Array2<f64>,
    /// Log of the decay, at most 0, `[rows, value_heads]`.
    pub g: Array2<f64>,
}

/// Every tensor of one pass through the layer, one entry per row.
pub struct GdnRows {
    /// q, k and v before the convolution, `[rows, channels]`.
    pub raw: Array2<f64>,
    /// After convolution and silu, `[rows, channels]`.
    pub convolved: Array2<f64>,
    /// What the recurrence took.
    pub inputs: DeltaInputs,
    /// `[rows, value_heads * value_dim]`.
    pub z: Array2<f64>,
    /// What the recurrence gave, `[rows, value_heads, value_dim]`.
    pub core: Array3<f64>,
    /// After norm and gate, the same shape.
    pub gated: Array3<f64>,
    /// After the output projection, `[rows, hidden]`.
    pub output: Array2<f64>,
    /// State after every row.
    pub states: Vec<GdnState>,
}

/// One step of one value head. `state: [key_dim, value_dim]`, `q, k: [key_dim]`, `v: [value_dim]`; returns `[value_dim]`.
pub fn step(
    state: &mut Array2<f64>,
    q: ArrayView1<f64>,
    k: ArrayView1<f64>,
    v: ArrayView1<f64>,
    beta: f64,
    g: f64,
) -> Array1<f64> {
    *state *= g.exp();
    let predicted = k.dot(state);
    let u = beta * (&v - &predicted);
    *state += &outer(k, u.view());
    q.dot(state)
}

fn outer(k: ArrayView1<f64>, u: ArrayView1<f64>) -> Array2<f64> {
    &k.insert_axis(Axis(1)) * &u.insert_axis(Axis(0))
}

impl GatedDeltaNet {
    pub(crate) fn load(
        weights: &Checkpoint,
        prefix: &str,
        dims: GdnDims,
        hidden: usize,
        rms_norm_eps: f64,
    ) -> Result<Self, ReferenceError> {
        let (channels, values) = (dims.conv_channels(), dims.value_heads * dims.value_dim);
        let linear = |name: &str, out, input| -> Result<Linear, ReferenceError> {
            Ok(Linear { weight: weights.matrix(&format!("{prefix}{name}.weight"), out, input)?, bias: None })
        };
        let taps = weights.tensor(&format!("{prefix}conv1d.weight"), [channels, 1, dims.conv_kernel])?;
        let taps = taps.into_shape_with_order((channels, dims.conv_kernel)).expect("the middle axis has length 1");
        Ok(Self {
            qkv: linear("in_proj_qkv", channels, hidden)?,
            z: linear("in_proj_z", values, hidden)?,
            b: linear("in_proj_b", dims.value_heads, hidden)?,
            a: linear("in_proj_a", dims.value_heads, hidden)?,
            taps,
            a_log: weights.vector(&format!("{prefix}A_log"), dims.value_heads)?,
            dt_bias: weights.vector(&format!("{prefix}dt_bias"), dims.value_heads)?,
            norm: Norm::plain(weights.vector(&format!("{prefix}norm.weight"), dims.value_dim)?, rms_norm_eps),
            output: linear("out_proj", hidden, values)?,
            dims,
        })
    }

    /// `x: [rows, hidden]`, already normed. Reads the state, writes nothing.
    pub(crate) fn forward(&self, x: &Array2<f64>, rows: &Rows, base: &GdnState) -> GdnRows {
        let (raw, z) = (self.qkv.apply(x), self.z.apply(x));
        let mut states: Vec<GdnState> = Vec::with_capacity(rows.len());
        let mut convolved = Array2::zeros(raw.raw_dim());
        for row in 0..rows.len() {
            let before = rows.parents[row].map_or(base, |parent| &states[parent]);
            let window = concatenate![Axis(0), before.tail, raw.slice(s![row..row + 1, ..])];
            convolved.row_mut(row).assign(&causal_conv(window.view(), self.taps.view()).mapv(silu));
            let tail = window.slice(s![1.., ..]).to_owned();
            states.push(GdnState { tail, delta: before.delta.clone() });
        }
        let inputs = self.inputs(convolved.view(), &self.b.apply(x), &self.a.apply(x));
        let core = self.recurrence(&inputs, rows, base, &mut states);
        let gated = self.norm.apply(&core) * heads_of(z.mapv(silu), self.dims.value_heads);
        let output = self.output.apply(&flat(&gated));
        GdnRows { raw, convolved, inputs, z, core, gated, output, states }
    }

    /// Splits the convolved channels into heads; beta and the decay skip the convolution.
    fn inputs(&self, convolved: ArrayView2<f64>, b: &Array2<f64>, a: &Array2<f64>) -> DeltaInputs {
        let GdnDims { key_heads, value_heads, key_dim, value_dim, .. } = self.dims;
        let keys = key_heads * key_dim;
        let group = value_heads / key_heads;
        let rows = convolved.nrows();
        let head = |row: usize, start: usize, head: usize| {
            let key_head = head / group;
            l2_norm(convolved.slice(s![row, start + key_head * key_dim..start + (key_head + 1) * key_dim]))
        };
        let mut query = Array3::zeros((rows, value_heads, key_dim));
        let mut key = Array3::zeros((rows, value_heads, key_dim));
        for row in 0..rows {
            for j in 0..value_heads {
                query.slice_mut(s![row, j, ..]).assign(&(head(row, 0, j) / (key_dim as f64).sqrt()));
                key.slice_mut(s![row, j, ..]).assign(&head(row, keys, j));
            }
        }
        let value = heads_of(convolved.slice(s![.., 2 * keys..]).as_standard_layout().into_owned(), value_heads);
        debug_assert_eq!(value.dim(), (rows, value_heads, value_dim));
        DeltaInputs {
            query,
            key,
            value,
            beta: b.mapv(sigmoid),
            g: -self.a_log.mapv(f64::exp) * (a + &self.dt_bias).mapv(softplus),
        }
    }

    /// Every row steps its parent's state.
    fn recurrence(&self, inputs: &DeltaInputs, rows: &Rows, base: &GdnState, states: &mut [GdnState]) -> Array3<f64> {
        let mut core = Array3::zeros(inputs.value.raw_dim());
        for row in 0..rows.len() {
            let mut delta = rows.parents[row].map_or(base, |parent| &states[parent]).delta.clone();
            for head in 0..self.dims.value_heads {
                let mut state = delta.index_axis(Axis(0), head).to_owned();
                let (q, k) = (inputs.query.slice(s![row, head, ..]), inputs.key.slice(s![row, head, ..]));
                let v = inputs.value.slice(s![row, head, ..]);
                let o = step(&mut state, q, k, v, inputs.beta[[row, head]], inputs.g[[row, head]]);
                core.slice_mut(s![row, head, ..]).assign(&o);
                delta.index_axis_mut(Axis(0), head).assign(&state);
            }
            states[row].delta = delta;
        }
        core
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    /// Two channels by hand: decay 1/2, then v - S^T k, then the read sees the write.
    #[test]
    fn one_step_by_hand() {
        let mut state = array![[2.0, 0.0], [0.0, 4.0]];
        let o = step(&mut state, array![1.0, 1.0].view(), array![1.0, 0.0].view(), array![3.0, 5.0].view(), 0.5, 0.5f64.ln());
        // decayed: [[1, 0], [0, 2]]; predicted [1, 0]; u = 0.5 * [2, 5]; written: [[2, 2.5], [0, 2]]
        assert_eq!(state, array![[2.0, 2.5], [0.0, 2.0]]);
        assert_eq!(o, array![2.0, 4.5]);
    }
}
