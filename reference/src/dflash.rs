//! DFlash (arXiv 2602.06036): a small bidirectional transformer that reads the target's residual stream after a few layers
//! and, in one pass over `[root, mask, mask, ...]`, gives independent marginals of the next `block_size - 1` positions.
//! Shares the target's embedding and head; the block leaves no trace in the state.

use crate::{
    attention::{Attention, KvCache},
    error::ReferenceError,
    layer::{Layer, Mixer},
    model::{Target, load_mlp},
    ops::{Linear, Norm},
    rows::Rows,
    state::LayerState,
    weights::Checkpoint,
};
use ndarray::{Array2, s};
use specdec::{AttentionDims, DflashConfig};

/// The drafter's weights.
pub struct Dflash {
    pub(crate) config: DflashConfig,
    dims: AttentionDims,
    fc: Linear,
    context_norm: Norm,
    layers: Vec<Layer>,
    norm: Norm,
}

/// Keys and values that every layer made from the target's features, for all committed positions.
#[derive(Clone, Debug, PartialEq)]
pub struct DflashState(pub(crate) Vec<KvCache>);

impl Dflash {
    pub(crate) fn load(weights: &Checkpoint, config: DflashConfig) -> Result<Self, ReferenceError> {
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let dims = AttentionDims {
            query_heads: config.query_heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            rotary_dim: config.head_dim,
            rope_theta: config.rope_theta,
            qk_norm: true,
            output_gate: false,
            qkv_bias: false,
        };
        let norm = |name: String| weights.vector(&name, hidden).map(|w| Norm::plain(w, eps));
        let layer = |i: usize| -> Result<Layer, ReferenceError> {
            let attention = format!("layers.{i}.self_attn.");
            Ok(Layer {
                mixer_norm: norm(format!("layers.{i}.input_layernorm.weight"))?,
                mixer: Mixer::Attention(Box::new(Attention::load(weights, &attention, dims, hidden, |w| Norm::plain(w, eps))?)),
                mlp_norm: norm(format!("layers.{i}.post_attention_layernorm.weight"))?,
                mlp: load_mlp(weights, &format!("layers.{i}.mlp."), hidden, config.intermediate_size)?,
            })
        };
        let features = config.target_layer_ids.len() * hidden;
        Ok(Self {
            fc: Linear { weight: weights.matrix("fc.weight", hidden, features)?, bias: None },
            context_norm: norm("hidden_norm.weight".into())?,
            layers: (0..config.layers).map(layer).collect::<Result<_, _>>()?,
            norm: norm("norm.weight".into())?,
            dims,
            config,
        })
    }

    /// Before the first position.
    pub(crate) fn start(&self) -> DflashState {
        DflashState(vec![KvCache::new(&self.dims); self.layers.len()])
    }

    /// Adds successive committed positions. `features: [positions, taps * hidden]`. The fused features enter every layer's
    /// key and value projections as they are, without that layer's input norm.
    pub(crate) fn observe(&self, features: &Array2<f64>, state: &mut DflashState) {
        let fused = self.context_norm.apply(&self.fc.apply(features));
        for (layer, cache) in self.layers.iter().zip(&mut state.0) {
            let positions = Vec::from_iter(cache.len()..cache.len() + features.nrows());
            if let Mixer::Attention(attention) = &layer.mixer {
                let (keys, values) = attention.keys_and_values(&fused, &positions);
                cache.append(&keys, &values, &Vec::from_iter(0..positions.len()));
            }
        }
    }

    /// Hidden rows of the positions after the root, `[block_size - 1, hidden]`; row `d` predicts depth `d + 1`.
    pub(crate) fn draft(&self, target: &Target, root: u32, state: &DflashState) -> Array2<f64> {
        let mut block = vec![self.config.mask_token_id; self.config.block_size];
        block[0] = root;
        let mut x = target.embed(&block);
        for (layer, cache) in self.layers.iter().zip(&state.0) {
            let rows = Rows::block(block.len(), cache.len());
            x = layer.forward(&x, &rows, &LayerState::Attention(cache.clone())).stream;
        }
        self.norm.apply(&x).slice(s![1.., ..]).to_owned()
    }
}
