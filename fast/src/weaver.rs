//! Weaver (arXiv 2607.06763): rescores the shortlist of every DFlash position given the tokens chosen on the path, and so
//! grows a tree. A small transformer reads the block's hidden states once as a prefix; every node then attends to the prefix
//! and to its own ancestors. The frontier (specdec) decides which nodes are expanded.

use crate::FastError;
use crate::attention::{Attention, AttentionWork};
use crate::backend::{Backend, Buffer, KvCache, KvShape, KvType, Matrix, Norm, RopeTable};
use crate::candidates::Proposer;
use crate::checkpoint::Checkpoint;
use crate::mlp::{Mlp, MlpWork};
use crate::model::Model;
use crate::plan::Plan;
use crate::weights::Weights;
use specdec::{AttentionDims, DraftTree, Frontier, FrontierEntry, GrowPlan, QuantScheme, WeaverConfig};
use std::sync::Arc;

/// Nodes expanded together, and children offered by each.
const EXPAND: usize = 4;
/// Growth steps at most.
const MAX_ROUNDS: usize = 64;

/// Weights.
pub(crate) struct Weaver {
    pub config: WeaverConfig,
    embedding_norm: Norm,
    hidden_norm: Norm,
    output_norm: Norm,
    embedding: (Matrix, Option<Buffer>),
    hidden: (Matrix, Option<Buffer>),
    query: Matrix,
    blocks: Vec<Block>,
}

struct Block {
    attention_norm: Norm,
    attention: Attention,
    mlp_norm: Norm,
    mlp: Mlp,
}

/// One sequence's work memory; nothing in it outlives a round.
pub(crate) struct WeaverState {
    caches: Vec<KvCache>,
    attention: AttentionWork,
    mlp: MlpWork,
    plan: Plan,
    /// Rows of the prefix.
    prefix: usize,
    inputs: Buffer,
    normed_inputs: Buffer,
    x: Buffer,
    normed: Buffer,
    delta: Buffer,
    queries: Buffer,
    scores: Buffer,
    shortlists: Vec<Shortlist>,
    nodes: Vec<Node>,
}

/// The candidates of one depth: `(id, DFlash logit)`, and their rows of the head once a node asks for them.
struct Shortlist {
    candidates: Vec<(u32, f32)>,
    head: Option<Matrix>,
}

/// An expanded node: its slot in the frontier and the scratch rows of its path.
struct Node {
    slot: usize,
    path: Vec<usize>,
}

impl Weaver {
    /// Reads `weaver/`.
    pub fn load(
        backend: &Backend,
        checkpoint: &Checkpoint,
        config: WeaverConfig,
        quantisation: QuantScheme,
    ) -> Result<Self, FastError> {
        let weights = Weights::new(backend, checkpoint, "", quantisation);
        let (dim, target, eps) = (config.model_dim, config.target_hidden_size, config.rms_norm_eps);
        let dims = attention_dims(&config);
        let rope = Arc::new(RopeTable::new(config.max_depth + 2, dims.head_dim, config.rope_theta));
        let projection =
            |name: &str| -> Result<_, FastError> { Ok((weights.matrix(name, dim, target)?, weights.biases(&[(name, dim)])?)) };
        let block = |i: usize| -> Result<Block, FastError> {
            let weights = weights.under(&format!("blocks.{i}"));
            let qkv = weights.matrix("qkv_projection", 3 * dim, dim)?;
            let out = weights.matrix("out_projection", dim, dim)?;
            Ok(Block {
                attention_norm: weights.norm("pre_attention_norm", dim, eps, false)?,
                attention: Attention::from_fused(dims, qkv, out, rope.clone()),
                mlp_norm: weights.norm("pre_mlp_norm", dim, eps, false)?,
                mlp: Mlp::load(&weights, dim, config.mlp_dim)?,
            })
        };
        Ok(Self {
            embedding_norm: weights.norm("embedding_norm", target, eps, false)?,
            hidden_norm: weights.norm("hidden_state_norm", target, eps, false)?,
            output_norm: weights.norm("output_norm", dim, eps, false)?,
            embedding: projection("embedding_projection")?,
            hidden: projection("hidden_state_projection")?,
            query: weights.matrix("query_projection", target, dim)?,
            blocks: (0..config.layers).map(block).collect::<Result<_, _>>()?,
            config,
        })
    }

    /// Work memory for blocks of `block` rows.
    pub fn new_state(&self, backend: &Backend, block: usize) -> WeaverState {
        let (c, dims) = (&self.config, attention_dims(&self.config));
        let (rows, slots) = (block.max(EXPAND), 1 + EXPAND * MAX_ROUNDS);
        let shape = KvShape { heads: dims.kv_heads, head_dim: dims.head_dim, capacity: block, staged: slots };
        WeaverState {
            caches: self.blocks.iter().map(|_| backend.kv_cache(shape, KvType::F32)).collect(),
            attention: AttentionWork::new(backend, &dims, shape, rows),
            mlp: MlpWork::new(backend, c.mlp_dim, rows),
            plan: Plan::with_room(rows),
            prefix: 0,
            inputs: backend.alloc(rows * c.target_hidden_size),
            normed_inputs: backend.alloc(rows * c.target_hidden_size),
            x: backend.alloc(rows * c.model_dim),
            normed: backend.alloc(rows * c.model_dim),
            delta: backend.alloc(rows * c.model_dim),
            queries: backend.alloc(EXPAND * c.target_hidden_size),
            scores: backend.alloc(c.pool),
            shortlists: vec![],
            nodes: vec![],
        }
    }

    /// Reads the round's prefix: the target's hidden state before the root (`last_hidden`, one row), then the block's
    /// hidden states of the mask rows. `shortlists[d]`: candidates of depth `d + 1` with their DFlash logits.
    pub fn begin(
        &self,
        backend: &Backend,
        s: &mut WeaverState,
        last_hidden: &Buffer,
        (block_hidden, block): (&Buffer, usize),
        shortlists: Vec<Vec<(u32, f32)>>,
    ) {
        let width = self.config.target_hidden_size;
        let prefix: Vec<usize> = (1..(self.config.max_depth + 1).min(block)).collect();
        backend.gather(last_hidden, width, &[0], &mut s.inputs, 0);
        backend.gather(block_hidden, width, &prefix, &mut s.inputs, 1);
        s.shortlists = shortlists.into_iter().map(|candidates| Shortlist { candidates, head: None }).collect();
        s.nodes.clear();
        s.prefix = prefix.len() + 1;
        for cache in &mut s.caches {
            backend.truncate(cache, 0);
        }
        s.plan.run(0, &vec![0; prefix.len() + 1]);
        self.embed_rows(backend, s, &self.hidden_norm, &self.hidden);
        self.run_blocks(backend, s);
    }

    /// Grows the best-first tree of at most `budget` nodes and `depth` levels under `root`, which stands at `position`.
    pub fn grow(
        &self,
        backend: &Backend,
        model: &Model,
        s: &mut WeaverState,
        proposer: &Proposer,
        (root, position): (u32, u64),
        (budget, depth): (usize, usize),
    ) -> DraftTree {
        let max_depth = depth.min(s.shortlists.len());
        let plan = GrowPlan { budget, expand_per_round: EXPAND, expand_width: EXPAND, max_depth, max_rounds: MAX_ROUNDS };
        let mut frontier = Frontier::new(root, plan);
        loop {
            let batch = frontier.next_batch();
            if batch.is_empty() {
                return frontier.finish();
            }
            self.expand(backend, model, s, &batch);
            for (row, entry) in batch.iter().enumerate() {
                let scored = self.score(backend, model, s, row, entry.depth);
                let at = position + 1 + entry.depth as u64;
                frontier.insert(entry.slot, &proposer.children(backend.pool(), &scored, EXPAND, at));
            }
        }
    }

    /// Runs a batch of nodes; their queries are in `s.queries` afterwards.
    fn expand(&self, backend: &Backend, model: &Model, s: &mut WeaverState, batch: &[FrontierEntry]) {
        let tokens: Vec<u32> = batch.iter().map(|e| e.token).collect();
        let prefix = s.prefix;
        let first = s.nodes.len();
        s.plan.start_staged(first);
        for (row, entry) in batch.iter().enumerate() {
            let parent = entry.parent.and_then(|slot| s.nodes.iter().find(|n| n.slot == slot));
            let mut path = parent.map_or(vec![], |n| n.path.clone());
            path.push(first + row);
            s.plan.push_staged(entry.token, entry.depth + 1, prefix, &path);
            s.nodes.push(Node { slot: entry.slot, path });
        }
        backend.embed(&model.embedding, &tokens, &mut s.inputs);
        self.embed_rows(backend, s, &self.embedding_norm, &self.embedding);
        self.run_blocks(backend, s);
        backend.norm(&self.output_norm, &s.x, batch.len(), &mut s.normed);
        backend.linear(&self.query, &s.normed, 0..batch.len(), &mut s.queries);
    }

    /// Candidates of the node in batch row `row`, with DFlash logit plus residual.
    fn score(&self, backend: &Backend, model: &Model, s: &mut WeaverState, row: usize, depth: usize) -> Vec<(u32, f32)> {
        let list = &mut s.shortlists[depth];
        let head = list.head.get_or_insert_with(|| {
            let ids: Vec<u32> = list.candidates.iter().map(|c| c.0).collect();
            backend.select_rows(&model.head, &ids)
        });
        backend.linear(head, &s.queries, row..row + 1, &mut s.scores);
        let residuals = backend.read(&s.scores, 0, list.candidates.len());
        list.candidates.iter().zip(residuals).map(|(&(id, logit), r)| (id, logit + r)).collect()
    }

    /// `s.x = W norm(inputs) + b`.
    fn embed_rows(&self, backend: &Backend, s: &mut WeaverState, norm: &Norm, (matrix, bias): &(Matrix, Option<Buffer>)) {
        let rows = s.plan.rows();
        backend.norm(norm, &s.inputs, rows, &mut s.normed_inputs);
        backend.linear(matrix, &s.normed_inputs, 0..rows, &mut s.x);
        if let Some(bias) = bias {
            backend.add_bias(&mut s.x, bias, rows);
        }
    }

    /// All blocks over the plan's rows.
    fn run_blocks(&self, backend: &Backend, s: &mut WeaverState) {
        let (rows, dim) = (s.plan.rows(), self.config.model_dim);
        for (block, cache) in self.blocks.iter().zip(&mut s.caches) {
            backend.norm(&block.attention_norm, &s.x, rows, &mut s.normed);
            let io = (&s.normed, &mut s.delta);
            block.attention.forward(backend, &s.plan, cache, &mut s.attention, io);
            backend.add_norm(&block.mlp_norm, &mut s.x, &s.delta, rows, &mut s.normed);
            block.mlp.forward(backend, rows, &mut s.mlp, &s.normed, &mut s.delta);
            backend.add(&mut s.x, &s.delta, rows * dim);
        }
    }
}

fn attention_dims(c: &WeaverConfig) -> AttentionDims {
    let head_dim = c.model_dim / c.heads;
    AttentionDims {
        query_heads: c.heads,
        kv_heads: c.heads,
        head_dim,
        rotary_dim: head_dim,
        rope_theta: c.rope_theta,
        qk_norm: false,
        output_gate: false,
        qkv_bias: false,
    }
}
