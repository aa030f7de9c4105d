//! The target: embedding, layers, final norm, head. One forward pass serves prefill (rows become part of the state) and
//! verification (the state is only read). Knows one sequence at a time; nothing of drafters.

use crate::FastError;
use crate::attention::{Attention, AttentionWork};
use crate::backend::{Backend, Buffer, KvCache, KvShape, KvType, Matrix, Norm, Place, RopeTable};
use crate::checkpoint::Checkpoint;
use crate::gdn::{Gdn, GdnStash, GdnState, GdnWork};
use crate::mlp::{Mlp, MlpWork};
use crate::plan::Plan;
use crate::weights::Weights;
use specdec::{AttentionDims, LayerKind, ModelConfig};
use std::sync::Arc;

/// Rows of the widest verification: the root and 32 drafts.
pub(crate) const TREE_ROWS: usize = specdec::Budget::MAX + 1;
/// Rows of the widest prefill pass. Longer prompts take several; the bits do not depend on it.
pub(crate) const CHUNK_ROWS: usize = 128;

/// The weights.
pub(crate) struct Model {
    pub config: ModelConfig,
    pub embedding: Arc<Matrix>,
    pub head: Arc<Matrix>,
    pub rope: Arc<RopeTable>,
    layers: Vec<Layer>,
    norm: Norm,
}

/// A residual layer: mixer, then MLP. Also the MTP module's only layer.
pub(crate) struct Layer {
    mixer_norm: Norm,
    mixer: Mixer,
    mlp_norm: Norm,
    mlp: Mlp,
}

enum Mixer {
    Gdn(Box<Gdn>),
    Attention(Box<Attention>),
}

/// What a sequence keeps of one layer, and the scratch rows of the last pass.
pub(crate) enum LayerState {
    /// Recurrent state, and the stash of the last pass.
    Gdn(GdnState, GdnStash),
    /// Keys and values.
    Attention(KvCache),
}

/// How much a sequence's state holds.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    /// Number type of keys and values.
    pub kv: KvType,
    /// Positions that can be committed.
    pub positions: usize,
    /// Rows that can be staged at once.
    pub staged: usize,
}

impl Room {
    fn shape(&self, a: &AttentionDims) -> KvShape {
        KvShape { heads: a.kv_heads, head_dim: a.head_dim, capacity: self.positions, staged: self.staged }
    }
}

/// Work memory of passes over one sequence: planned once, whatever follows.
pub(crate) struct Work {
    /// The residual stream, `[rows, hidden]`.
    pub x: Buffer,
    /// After the final norm, `[rows, hidden]`.
    pub hidden: Buffer,
    normed: Buffer,
    delta: Buffer,
    attention: AttentionWork,
    gdn: Option<GdnWork>,
    mlp: MlpWork,
}

/// Where the residual stream after chosen layers is copied: `[rows, layers * hidden]`.
pub(crate) struct Taps<'a> {
    pub layers: &'a [usize],
    pub into: &'a mut Buffer,
}

impl Work {
    /// For passes of at most `rows` rows over states of this room.
    pub fn new(backend: &Backend, c: &ModelConfig, rows: usize, room: Room) -> Self {
        let stream = || backend.alloc(rows * c.hidden_size);
        Self {
            x: stream(),
            hidden: stream(),
            normed: stream(),
            delta: stream(),
            attention: AttentionWork::new(backend, &c.attention, room.shape(&c.attention), rows),
            gdn: c.gdn.as_ref().map(|d| GdnWork::new(backend, d, rows)),
            mlp: MlpWork::new(backend, c.intermediate_size, rows),
        }
    }
}

impl Model {
    /// Reads and packs the target's tensors.
    pub fn load(backend: &Backend, checkpoint: &Checkpoint, config: ModelConfig) -> Result<Self, FastError> {
        let root = Weights::new(backend, checkpoint, "", config.quantisation);
        let nested = root.has("model.language_model.embed_tokens.weight");
        let body = root.under(if nested { "model.language_model" } else { "model" });
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = Arc::new(body.matrix("embed_tokens", vocab, hidden)?);
        let head = if config.tie_word_embeddings { embedding.clone() } else { Arc::new(root.matrix("lm_head", vocab, hidden)?) };
        let a = &config.attention;
        let rope = Arc::new(RopeTable::new(config.max_positions, a.rotary_dim, a.rope_theta));
        let layers = config
            .layers
            .iter()
            .enumerate()
            .map(|(i, &kind)| Layer::load(&body.under(&format!("layers.{i}")), &config, kind, rope.clone()))
            .collect::<Result<_, _>>()?;
        let norm = body.norm("norm", hidden, config.rms_norm_eps, config.norm_plus_one)?;
        Ok(Self { embedding, head, rope, layers, norm, config })
    }

    /// The state before the first token.
    pub fn new_state(&self, backend: &Backend, room: Room) -> Vec<LayerState> {
        self.layers.iter().map(|layer| layer.new_state(backend, &self.config, room)).collect()
    }

    /// Runs the plan's rows. Rows to be kept become part of the state; staged ones only read it, and
    /// [`commit`](Self::commit) may follow. Afterwards `work.hidden` holds the final norm's output.
    pub fn forward(&self, backend: &Backend, plan: &Plan, state: &mut [LayerState], work: &mut Work, mut taps: Option<Taps>) {
        let (rows, hidden) = (plan.rows(), self.config.hidden_size);
        backend.embed(&self.embedding, &plan.tokens, &mut work.x);
        for (i, (layer, state)) in self.layers.iter().zip(state).enumerate() {
            layer.forward(backend, plan, state, work);
            if let Some(taps) = &mut taps
                && let Some(slot) = taps.layers.iter().position(|&tap| tap == i)
            {
                let from = Place::heads(0, rows, 1, hidden);
                let to = Place::heads(slot * hidden, rows, 1, hidden).in_rows_of(taps.layers.len() * hidden);
                backend.copy((&work.x, from), (taps.into, to));
            }
        }
        backend.norm(&self.norm, &work.x, rows, &mut work.hidden);
    }

    /// Makes `path`, rows of the last pass from its root downwards, part of the state.
    pub fn commit(&self, backend: &Backend, state: &mut [LayerState], work: &mut Work, path: &[usize]) {
        for (layer, state) in self.layers.iter().zip(state) {
            match (&layer.mixer, state, &mut work.gdn) {
                (Mixer::Gdn(gdn), LayerState::Gdn(state, stash), Some(work)) => gdn.commit(backend, (state, stash), work, path),
                (_, LayerState::Attention(cache), _) => backend.commit_staged(cache, path),
                _ => unreachable!("a layer's state is made by the layer"),
            }
        }
    }
}

impl Layer {
    /// Reads one layer.
    pub fn load(weights: &Weights, c: &ModelConfig, kind: LayerKind, rope: Arc<RopeTable>) -> Result<Self, FastError> {
        let (hidden, eps, plus_one) = (c.hidden_size, c.rms_norm_eps, c.norm_plus_one);
        let mixer = match (kind, c.gdn) {
            (LayerKind::GatedDeltaNet, Some(dims)) => {
                Mixer::Gdn(Box::new(Gdn::load(&weights.under("linear_attn"), dims, hidden, eps)?))
            }
            _ => {
                let weights = weights.under("self_attn");
                Mixer::Attention(Box::new(Attention::load(&weights, c.attention, hidden, (eps, plus_one), rope)?))
            }
        };
        Ok(Self {
            mixer_norm: weights.norm("input_layernorm", hidden, eps, plus_one)?,
            mixer,
            mlp_norm: weights.norm("post_attention_layernorm", hidden, eps, plus_one)?,
            mlp: Mlp::load(&weights.under("mlp"), hidden, c.intermediate_size)?,
        })
    }

    /// The layer's state before the first token.
    pub fn new_state(&self, backend: &Backend, c: &ModelConfig, room: Room) -> LayerState {
        match (&self.mixer, &c.gdn) {
            (Mixer::Gdn(_), Some(dims)) => {
                LayerState::Gdn(GdnState::new(backend, dims), GdnStash::new(backend, dims, room.staged))
            }
            _ => LayerState::Attention(backend.kv_cache(room.shape(&c.attention), room.kv)),
        }
    }

    /// See [`Attention::inject`].
    pub fn inject(&self, backend: &Backend, positions: &[u32], kv: (&mut Buffer, usize, usize), state: &mut LayerState) {
        if let (Mixer::Attention(attention), LayerState::Attention(cache)) = (&self.mixer, state) {
            attention.inject(backend, positions, kv, cache);
        }
    }

    /// `work.x += mixer(norm(x))`, then `work.x += mlp(norm(x))`.
    pub fn forward(&self, backend: &Backend, plan: &Plan, state: &mut LayerState, work: &mut Work) {
        let rows = plan.rows();
        backend.norm(&self.mixer_norm, &work.x, rows, &mut work.normed);
        match (&self.mixer, state, &mut work.gdn) {
            (Mixer::Gdn(gdn), LayerState::Gdn(state, stash), Some(gdn_work)) => {
                gdn.forward(backend, plan, (state, stash), gdn_work, (&work.normed, &mut work.delta));
            }
            (Mixer::Attention(attention), LayerState::Attention(cache), _) => {
                attention.forward(backend, plan, cache, &mut work.attention, (&work.normed, &mut work.delta));
            }
            _ => unreachable!("a layer's state is made by the layer"),
        }
        backend.add_norm(&self.mlp_norm, &mut work.x, &work.delta, rows, &mut work.normed);
        self.mlp.forward(backend, rows, &mut work.mlp, &work.normed, &mut work.delta);
        backend.add(&mut work.x, &work.delta, rows * self.mlp_norm.dim());
    }
}
