//! A decoder layer: `x += mixer(norm(x)); x += mlp(norm(x))`, the mixer being Gated DeltaNet or attention.
//! The drafters' layers are the same thing with other weights.

use crate::{
    attention::{Attention, AttentionRows},
    gdn::{GatedDeltaNet, GdnRows},
    ops::{Linear, Norm, silu},
    rows::Rows,
    state::LayerState,
};
use ndarray::Array2;

/// `down(silu(gate(x)) * up(x))`.
pub struct Mlp {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Mlp {
    /// What `down` takes.
    fn inner(&self, x: &Array2<f64>) -> Array2<f64> {
        self.gate.apply(x).mapv(silu) * self.up.apply(x)
    }
}

/// One of the two.
pub enum Mixer {
    /// Linear attention with the gated delta rule.
    Gdn(Box<GatedDeltaNet>),
    /// Softmax attention.
    Attention(Box<Attention>),
}

/// One layer.
pub struct Layer {
    pub(crate) mixer_norm: Norm,
    pub(crate) mixer: Mixer,
    pub(crate) mlp_norm: Norm,
    pub(crate) mlp: Mlp,
}

/// What the mixer computed for the rows of a pass.
pub enum MixerRows {
    /// Of a Gated DeltaNet layer.
    Gdn(Box<GdnRows>),
    /// Of an attention layer.
    Attention(Box<AttentionRows>),
}

/// What a layer computed for the rows of a pass.
pub struct LayerRows {
    /// After the first norm, what the mixer's input projections take, `[rows, hidden]`.
    pub mixer_input: Array2<f64>,
    /// After the second norm, what `gate` and `up` take, `[rows, hidden]`.
    pub mlp_input: Array2<f64>,
    /// What `down` takes, `[rows, intermediate]`.
    pub mlp_inner: Array2<f64>,
    /// Residual stream after the layer, `[rows, hidden]`.
    pub stream: Array2<f64>,
    /// The mixer's tensors.
    pub mixer: MixerRows,
}

impl Layer {
    /// `x: [rows, hidden]`. Reads the state, writes nothing.
    pub(crate) fn forward(&self, x: &Array2<f64>, rows: &Rows, state: &LayerState) -> LayerRows {
        let mixer_input = self.mixer_norm.apply(x);
        let mixer = match (&self.mixer, state) {
            (Mixer::Gdn(gdn), LayerState::Gdn(state)) => MixerRows::Gdn(Box::new(gdn.forward(&mixer_input, rows, state))),
            (Mixer::Attention(attention), LayerState::Attention(cache)) => {
                MixerRows::Attention(Box::new(attention.forward(&mixer_input, rows, cache)))
            }
            _ => unreachable!("a layer's state comes from its own configuration"),
        };
        let mixed = x + match &mixer {
            MixerRows::Gdn(rows) => &rows.output,
            MixerRows::Attention(rows) => &rows.output,
        };
        let mlp_input = self.mlp_norm.apply(&mixed);
        let mlp_inner = self.mlp.inner(&mlp_input);
        let stream = mixed + self.mlp.down.apply(&mlp_inner);
        LayerRows { mixer_input, mlp_input, mlp_inner, stream, mixer }
    }
}
