//! DFlash, a block drafter (arXiv 2602.06036): one pass over `[root, mask, mask, ...]` gives the marginals of the positions
//! after the root. Keys and values of the context come from the target's tapped residual streams, fused once per token.
//! Shares the target's embedding and head. Knows its own cache; nothing of trees.

use crate::FastError;
use crate::backend::{Backend, Buffer, Matrix, Norm, RopeTable};
use crate::checkpoint::Checkpoint;
use crate::model::{CHUNK_ROWS, Layer, LayerState, Model, Room, TREE_ROWS, Work};
use crate::plan::Plan;
use crate::weights::Weights;
use specdec::{Architecture, AttentionDims, DflashConfig, LayerKind, ModelConfig, QuantScheme};
use std::sync::Arc;

/// Rows that wait at most until they are fused into the context.
const WAITING: usize = CHUNK_ROWS + 2 * TREE_ROWS;

/// Weights.
pub(crate) struct Dflash {
    pub config: DflashConfig,
    /// The draft layers seen as a dense decoder.
    shape: ModelConfig,
    fc: Matrix,
    fused_norm: Norm,
    /// `[k | v]` projections of all layers, for the context.
    context: Matrix,
    layers: Vec<Layer>,
    norm: Norm,
}

/// One sequence's state.
pub(crate) struct DflashState {
    caches: Vec<LayerState>,
    work: Work,
    plan: Plan,
    block: Vec<u32>,
    /// Tapped rows of committed tokens that wait: `[rows, taps * hidden]`.
    waiting: Buffer,
    rows: usize,
    /// Tokens in the context.
    done: usize,
    positions: Vec<u32>,
    fused: Buffer,
    normed: Buffer,
    context: Buffer,
    logits: Buffer,
}

impl Dflash {
    /// Reads `dflash/`. `quantisation` comes from the drafter's own config.
    pub fn load(
        backend: &Backend,
        checkpoint: &Checkpoint,
        config: DflashConfig,
        quantisation: QuantScheme,
        model: &Model,
    ) -> Result<Self, FastError> {
        let weights = Weights::new(backend, checkpoint, "", quantisation);
        let shape = decoder(&config, &model.config);
        let a = shape.attention;
        let (hidden, kv) = (config.hidden_size, a.kv_heads * a.head_dim);
        let rope = Arc::new(RopeTable::new(context_room(&config, model), a.rotary_dim, a.rope_theta));
        let (mut layers, mut context) = (vec![], vec![]);
        for i in 0..config.layers {
            let weights = weights.under(&format!("layers.{i}"));
            layers.push(Layer::load(&weights, &shape, LayerKind::FullAttention, rope.clone())?);
            let attention = weights.under("self_attn");
            context.push(attention.matrix("k_proj", kv, hidden)?);
            context.push(attention.matrix("v_proj", kv, hidden)?);
        }
        let eps = config.rms_norm_eps;
        Ok(Self {
            fc: weights.matrix("fc", hidden, config.target_layer_ids.len() * hidden)?,
            fused_norm: weights.norm("hidden_norm", hidden, eps, false)?,
            context: weights.stack(context)?,
            norm: weights.norm("norm", hidden, eps, false)?,
            layers,
            shape,
            config,
        })
    }

    /// The state before the first token.
    pub fn new_state(&self, backend: &Backend, model: &Model, room: Room) -> DflashState {
        let (rows, block) = (WAITING.max(self.config.block_size), self.config.block_size);
        let room = Room { staged: block, ..room };
        let (hidden, a) = (self.config.hidden_size, &self.shape.attention);
        DflashState {
            caches: self.layers.iter().map(|l| l.new_state(backend, &self.shape, room)).collect(),
            work: Work::new(backend, &self.shape, block, room),
            plan: Plan::with_room(block),
            block: Vec::with_capacity(block),
            waiting: backend.alloc(rows * self.config.target_layer_ids.len() * hidden),
            rows: 0,
            done: 0,
            positions: Vec::with_capacity(rows),
            fused: backend.alloc(rows * hidden),
            normed: backend.alloc(rows * hidden),
            context: backend.alloc(rows * self.layers.len() * 2 * a.kv_heads * a.head_dim),
            logits: backend.alloc(self.config.max_depth() * model.config.vocab_size),
        }
    }

    /// Notes committed rows: `rows` of the tapped streams.
    pub fn push(&self, backend: &Backend, s: &mut DflashState, taps: &Buffer, rows: &[usize]) {
        if s.rows + rows.len() > WAITING {
            self.fuse(backend, s);
        }
        backend.gather(taps, self.config.target_layer_ids.len() * self.config.hidden_size, rows, &mut s.waiting, s.rows);
        s.rows += rows.len();
    }

    /// One pass over the block that starts with `root`. Row `d` of the result holds the logits of depth `d + 1`:
    /// `[depth, vocab]`. The block's hidden states after the final norm stay in [`hidden`](DflashState::hidden).
    pub fn draft<'s>(&self, backend: &Backend, model: &Model, s: &'s mut DflashState, root: u32, depth: usize) -> &'s Buffer {
        self.fuse(backend, s);
        s.block.clear();
        s.block.push(root);
        s.block.resize(self.config.block_size, self.config.mask_token_id);
        s.plan.block(s.done, &s.block);
        backend.embed(&model.embedding, &s.block, &mut s.work.x);
        for (layer, cache) in self.layers.iter().zip(&mut s.caches) {
            layer.forward(backend, &s.plan, cache, &mut s.work);
        }
        backend.norm(&self.norm, &s.work.x, s.block.len(), &mut s.work.hidden);
        backend.linear(&model.head, &s.work.hidden, 1..1 + depth, &mut s.logits);
        &s.logits
    }

    /// Brings every waiting row into the context of all layers.
    fn fuse(&self, backend: &Backend, s: &mut DflashState) {
        if s.rows == 0 {
            return;
        }
        backend.linear(&self.fc, &s.waiting, 0..s.rows, &mut s.fused);
        backend.norm(&self.fused_norm, &s.fused, s.rows, &mut s.normed);
        backend.linear(&self.context, &s.normed, 0..s.rows, &mut s.context);
        s.positions.clear();
        s.positions.extend((s.done..s.done + s.rows).map(|p| p as u32));
        let each = 2 * self.shape.attention.kv_heads * self.shape.attention.head_dim;
        for (i, (layer, cache)) in self.layers.iter().zip(&mut s.caches).enumerate() {
            let part = (&mut s.context, self.layers.len() * each, i * each);
            layer.inject(backend, &s.positions, part, cache);
        }
        s.done += s.rows;
        s.rows = 0;
    }
}

impl DflashState {
    /// The last block's hidden states, `[block, hidden]`.
    pub fn hidden(&self) -> &Buffer {
        &self.work.hidden
    }

    /// The last block's logits, `[depth, vocab]`.
    pub fn logits(&self) -> &Buffer {
        &self.logits
    }
}

/// Positions a block may reach.
fn context_room(config: &DflashConfig, model: &Model) -> usize {
    model.config.max_positions + config.block_size
}

/// The draft layers as a dense decoder with q/k norm.
fn decoder(d: &DflashConfig, target: &ModelConfig) -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Qwen3,
        vocab_size: target.vocab_size,
        hidden_size: d.hidden_size,
        intermediate_size: d.intermediate_size,
        layers: vec![LayerKind::FullAttention; d.layers],
        attention: AttentionDims {
            query_heads: d.query_heads,
            kv_heads: d.kv_heads,
            head_dim: d.head_dim,
            rotary_dim: d.head_dim,
            rope_theta: d.rope_theta,
            qk_norm: true,
            output_gate: false,
            qkv_bias: false,
        },
        gdn: None,
        rms_norm_eps: d.rms_norm_eps,
        norm_plus_one: false,
        tie_word_embeddings: true,
        mtp_layers: 0,
        max_positions: target.max_positions,
        eos_token_ids: vec![],
        quantisation: QuantScheme::None,
    }
}
