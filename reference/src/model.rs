//! The target: embedding, layers, final norm, head. One forward pass takes any rows, be they a prompt, one token or a draft
//! tree, and leaves the state as it was.

use crate::{
    attention::Attention,
    error::ReferenceError,
    gdn::GatedDeltaNet,
    layer::{Layer, LayerRows, Mixer, Mlp},
    ops::{Linear, Norm, product},
    rows::Rows,
    state::State,
    weights::Checkpoint,
};
use ndarray::{Array1, Array2, Axis, concatenate};
use specdec::{LayerKind, ModelConfig};

/// Rows of a prompt pass. It bounds memory and changes no bit of any result.
const PREFILL_ROWS: usize = 32;

/// A target model.
pub struct Target {
    pub(crate) config: ModelConfig,
    embedding: Array2<f64>,
    layers: Vec<Layer>,
    norm: Norm,
    head: Option<Array2<f64>>,
}

/// What a pass computed.
pub struct Pass {
    /// In layer order.
    pub layers: Vec<LayerRows>,
    /// After the final norm, `[rows, hidden]`.
    pub hidden: Array2<f64>,
    /// `[rows, vocab]`.
    pub logits: Array2<f64>,
}

impl Pass {
    /// The residual stream after the tapped layers, side by side, `[path, taps * hidden]`: what DFlash reads.
    pub fn features(&self, taps: &[usize], path: &[usize]) -> Array2<f64> {
        let streams: Vec<_> = taps.iter().map(|&layer| self.layers[layer].stream.select(Axis(0), path)).collect();
        let views: Vec<_> = streams.iter().map(|s| s.view()).collect();
        concatenate(Axis(1), &views).expect("one row per position, from every tap")
    }
}

impl Target {
    /// Reads the target's tensors: `model.language_model.*` or `model.*`, and `lm_head.weight` unless tied.
    pub(crate) fn load(weights: &Checkpoint, config: ModelConfig) -> Result<Self, ReferenceError> {
        let nested = weights.contains("model.language_model.embed_tokens.weight");
        let prefix = if nested { "model.language_model." } else { "model." };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = weights.matrix(&format!("{prefix}embed_tokens.weight"), vocab, hidden)?;
        let layer = |(i, &kind): (usize, &LayerKind)| load_layer(weights, &format!("{prefix}layers.{i}."), &config, kind);
        let layers = config.layers.iter().enumerate().map(layer).collect::<Result<_, _>>()?;
        let norm = config_norm(&config)(weights.vector(&format!("{prefix}norm.weight"), hidden)?);
        let untied = !config.tie_word_embeddings;
        let head = untied.then(|| weights.matrix("lm_head.weight", vocab, hidden)).transpose()?;
        Ok(Self { embedding, layers, norm, head, config })
    }

    /// Rows of the embedding, `[tokens, hidden]`.
    pub fn embed(&self, tokens: &[u32]) -> Array2<f64> {
        let ids: Vec<usize> = tokens.iter().map(|&t| t as usize).collect();
        self.embedding.select(Axis(0), &ids)
    }

    /// `[vocab, hidden]`.
    pub fn head(&self) -> &Array2<f64> {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Logits of hidden rows after a final norm, `[rows, vocab]`.
    pub fn logits(&self, hidden: &Array2<f64>) -> Array2<f64> {
        product(hidden, self.head())
    }

    /// One pass over all rows.
    pub fn forward(&self, tokens: &[u32], rows: &Rows, state: &State) -> Pass {
        let mut x = self.embed(tokens);
        let mut layers: Vec<LayerRows> = Vec::with_capacity(self.layers.len());
        for (layer, layer_state) in self.layers.iter().zip(&state.layers) {
            let rows = layer.forward(&x, rows, layer_state);
            x = rows.stream.clone();
            layers.push(rows);
        }
        let hidden = self.norm.apply(&x);
        let logits = self.logits(&hidden);
        Pass { layers, hidden, logits }
    }

    /// Runs tokens one after the other in chunks and commits them all; `each` sees every chunk's pass.
    pub fn run(&self, tokens: &[u32], state: &mut State, each: &mut dyn FnMut(&Pass)) {
        self.run_chunked(tokens, PREFILL_ROWS, state, each);
    }

    pub(crate) fn run_chunked(&self, tokens: &[u32], chunk: usize, state: &mut State, each: &mut dyn FnMut(&Pass)) {
        for tokens in tokens.chunks(chunk) {
            let pass = self.forward(tokens, &Rows::chain(tokens.len(), state.length), state);
            state.commit(&pass.layers, &Vec::from_iter(0..tokens.len()));
            each(&pass);
        }
    }
}

/// How the target's norms store their weights; the delta rule's own norm is always plain.
pub(crate) fn config_norm(config: &ModelConfig) -> impl Fn(Array1<f64>) -> Norm {
    let (plus_one, eps) = (config.norm_plus_one, config.rms_norm_eps);
    move |weight| if plus_one { Norm::plus_one(weight, eps) } else { Norm::plain(weight, eps) }
}

/// A layer of the target or of its multi-token-prediction head.
pub(crate) fn load_layer(
    weights: &Checkpoint,
    prefix: &str,
    config: &ModelConfig,
    kind: LayerKind,
) -> Result<Layer, ReferenceError> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let norm = config_norm(config);
    let mixer = match (kind, config.gdn) {
        (LayerKind::GatedDeltaNet, Some(dims)) => {
            let prefix = format!("{prefix}linear_attn.");
            Mixer::Gdn(Box::new(GatedDeltaNet::load(weights, &prefix, dims, hidden, config.rms_norm_eps)?))
        }
        _ => {
            Mixer::Attention(Box::new(Attention::load(weights, &format!("{prefix}self_attn."), config.attention, hidden, &norm)?))
        }
    };
    Ok(Layer {
        mixer_norm: norm(weights.vector(&format!("{prefix}input_layernorm.weight"), hidden)?),
        mixer,
        mlp_norm: norm(weights.vector(&format!("{prefix}post_attention_layernorm.weight"), hidden)?),
        mlp: load_mlp(weights, &format!("{prefix}mlp."), hidden, inner)?,
    })
}

/// `gate_proj`, `up_proj` and `down_proj` without biases.
pub(crate) fn load_mlp(weights: &Checkpoint, prefix: &str, hidden: usize, inner: usize) -> Result<Mlp, ReferenceError> {
    let linear = |name: &str, out, input| -> Result<Linear, ReferenceError> {
        Ok(Linear { weight: weights.matrix(&format!("{prefix}{name}.weight"), out, input)?, bias: None })
    };
    Ok(Mlp {
        gate: linear("gate_proj", inner, hidden)?,
        up: linear("up_proj", inner, hidden)?,
        down: linear("down_proj", hidden, inner)?,
    })
}
