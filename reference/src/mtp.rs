//! The multi-token-prediction head of Qwen3.5: row `p` takes the embedding of token `p + 1` and the target's hidden state
//! of position `p` after the final norm, and predicts token `p + 2`. Chained by feeding its own output back.
//! Keeps keys and values of its own, and only ever of rows whose hidden state came from the target.

use crate::{
    attention::KvCache,
    error::ReferenceError,
    layer::{Layer, MixerRows},
    model::{Target, config_norm, load_layer},
    ops::{Linear, Norm},
    rows::Rows,
    state::LayerState,
    weights::Checkpoint,
};
use ndarray::{Array2, Axis, concatenate, s};
use specdec::LayerKind;

/// The head's weights; embedding and output head are the target's.
pub struct Mtp {
    embedding_norm: Norm,
    hidden_norm: Norm,
    fc: Linear,
    layer: Layer,
    norm: Norm,
}

/// What the head keeps of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct MtpState {
    /// Row `p` for every position whose next token is known.
    pub cache: KvCache,
    /// The head's output at the last of them, `[1, hidden]`.
    pub last: Array2<f64>,
}

impl Mtp {
    pub(crate) fn load(weights: &Checkpoint, target: &Target) -> Result<Self, ReferenceError> {
        let (config, hidden) = (&target.config, target.config.hidden_size);
        let norm = |name: &str| weights.vector(&format!("mtp.{name}.weight"), hidden).map(config_norm(config));
        Ok(Self {
            embedding_norm: norm("pre_fc_norm_embedding")?,
            hidden_norm: norm("pre_fc_norm_hidden")?,
            fc: Linear { weight: weights.matrix("mtp.fc.weight", hidden, 2 * hidden)?, bias: None },
            layer: load_layer(weights, "mtp.layers.0.", config, LayerKind::FullAttention)?,
            norm: norm("norm")?,
        })
    }

    /// Before the first row.
    pub(crate) fn start(&self, target: &Target) -> MtpState {
        MtpState { cache: KvCache::new(&target.config.attention), last: Array2::zeros((1, target.config.hidden_size)) }
    }

    /// Successive rows: `next_tokens[i]` follows the position of `hidden`'s row `i`. Appends to the state and returns the
    /// head's outputs, `[rows, hidden]`, from which [`Target::logits`] predicts the token after `next_tokens[i]`.
    pub(crate) fn observe(
        &self,
        target: &Target,
        next_tokens: &[u32],
        hidden: &Array2<f64>,
        state: &mut MtpState,
    ) -> Array2<f64> {
        let embedded = self.embedding_norm.apply(&target.embed(next_tokens));
        let x = self.fc.apply(&concatenate![Axis(1), embedded, self.hidden_norm.apply(hidden)]);
        let rows = Rows::chain(next_tokens.len(), state.cache.len());
        let out = self.layer.forward(&x, &rows, &LayerState::Attention(state.cache.clone()));
        if let MixerRows::Attention(new) = &out.mixer {
            state.cache.append(&new.key, &new.value, &Vec::from_iter(0..rows.len()));
        }
        let output = self.norm.apply(&out.stream);
        state.last = output.slice(s![output.nrows() - 1.., ..]).to_owned();
        output
    }
}
