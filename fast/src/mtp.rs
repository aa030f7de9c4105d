//! The multi-token-prediction head as a chain drafter. Its row `p` takes the embedding of token `p + 1` and the target's
//! hidden state at `p` after the final norm, and predicts token `p + 2`; further drafts feed its own output back.
//! Rows of committed tokens are always filled with the target's true hidden states, never with its own.

use crate::FastError;
use crate::backend::{Backend, Buffer, Matrix, Norm, Place};
use crate::candidates::Proposer;
use crate::model::{CHUNK_ROWS, Layer, LayerState, Model, Room, TREE_ROWS, Work};
use crate::plan::Plan;
use crate::weights::Weights;
use specdec::LayerKind;

/// Rows that wait at most until they are run through the layer.
const WAITING: usize = CHUNK_ROWS + 2 * TREE_ROWS;

/// Weights.
pub(crate) struct Mtp {
    embedding_norm: Norm,
    hidden_norm: Norm,
    fc: Matrix,
    layer: Layer,
    norm: Norm,
}

/// One sequence's state.
pub(crate) struct MtpState {
    cache: LayerState,
    work: Work,
    plan: Plan,
    /// Hidden states that wait, and the token after each: `tokens` is as long, or one shorter.
    waiting: Buffer,
    hidden_rows: usize,
    tokens: Vec<u32>,
    /// Rows in the cache.
    done: usize,
    embedded: Buffer,
    normed: Buffer,
    joined: Buffer,
    logits: Buffer,
}

impl Mtp {
    /// Reads `mtp.*`. `None` when the checkpoint has no such tensors (text-only saves drop them).
    pub fn load(weights: &Weights, model: &Model) -> Result<Option<Self>, FastError> {
        let c = &model.config;
        let weights = weights.under("mtp");
        if c.mtp_layers == 0 || !weights.has("fc.weight") {
            return Ok(None);
        }
        let norm = |name| weights.norm(name, c.hidden_size, c.rms_norm_eps, c.norm_plus_one);
        Ok(Some(Self {
            embedding_norm: norm("pre_fc_norm_embedding")?,
            hidden_norm: norm("pre_fc_norm_hidden")?,
            fc: weights.matrix("fc", c.hidden_size, 2 * c.hidden_size)?,
            layer: Layer::load(&weights.under("layers.0"), c, LayerKind::FullAttention, model.rope.clone())?,
            norm: norm("norm")?,
        }))
    }

    /// The state before the first token.
    pub fn new_state(&self, backend: &Backend, model: &Model, room: Room) -> MtpState {
        let (c, rows) = (&model.config, WAITING);
        let hidden = c.hidden_size;
        MtpState {
            cache: self.layer.new_state(backend, c, room),
            work: Work::new(backend, c, rows, room),
            plan: Plan::with_room(rows),
            waiting: backend.alloc(rows * hidden),
            hidden_rows: 0,
            tokens: Vec::with_capacity(rows + 1),
            done: 0,
            embedded: backend.alloc(rows * hidden),
            normed: backend.alloc(rows * hidden),
            joined: backend.alloc(2 * rows * hidden),
            logits: backend.alloc(c.vocab_size),
        }
    }

    /// Notes committed rows: `rows` of `hidden`, whose tokens are `tokens`.
    pub fn push(&self, backend: &Backend, model: &Model, s: &mut MtpState, (hidden, rows): (&Buffer, &[usize]), tokens: &[u32]) {
        if s.hidden_rows + rows.len() > WAITING {
            self.run_waiting(backend, model, s);
        }
        // A row's token follows the hidden state before it, which waits, or was used with this token when drafting.
        let known = usize::from(s.tokens.len() == s.hidden_rows);
        s.tokens.extend_from_slice(&tokens[known..]);
        backend.gather(hidden, model.config.hidden_size, rows, &mut s.waiting, s.hidden_rows);
        s.hidden_rows += rows.len();
    }

    /// Drafts a chain of `depth` tokens after `root`, which stands at `position`.
    pub fn draft(
        &self,
        backend: &Backend,
        model: &Model,
        s: &mut MtpState,
        proposer: &mut Proposer,
        (root, position, depth): (u32, u64, usize),
    ) -> Vec<(u32, f32)> {
        s.tokens.push(root);
        let last = s.tokens.len() - 1;
        self.run_waiting(backend, model, s);
        let mut drafts = Vec::with_capacity(depth);
        let (kept, hidden) = (s.done, model.config.hidden_size);
        let mut row = last;
        loop {
            backend.linear(&model.head, &s.work.hidden, row..row + 1, &mut s.logits);
            let logits = backend.read(&s.logits, 0, model.config.vocab_size);
            let draft = proposer.best(backend.pool(), logits, position + 1 + drafts.len() as u64);
            drafts.push(draft);
            if drafts.len() == depth {
                break;
            }
            backend.gather(&s.work.hidden, hidden, &[row], &mut s.waiting, 0);
            self.run(backend, model, s, &[draft.0]);
            row = 0;
        }
        s.done = kept;
        if let LayerState::Attention(cache) = &mut s.cache {
            backend.truncate(cache, kept);
        }
        drafts
    }

    /// Runs every waiting row whose next token is known.
    fn run_waiting(&self, backend: &Backend, model: &Model, s: &mut MtpState) {
        let tokens = std::mem::take(&mut s.tokens);
        let ready = tokens.len();
        if ready > 0 {
            self.run(backend, model, s, &tokens);
        }
        if s.hidden_rows > ready {
            backend.move_row(&mut s.waiting, model.config.hidden_size, ready, 0);
        }
        s.hidden_rows -= ready;
        s.tokens = tokens;
        s.tokens.clear();
    }

    /// Runs rows `0..tokens.len()` of `waiting` through the layer and keeps them. Leaves the outputs in `work.hidden`.
    fn run(&self, backend: &Backend, model: &Model, s: &mut MtpState, tokens: &[u32]) {
        let (rows, hidden) = (tokens.len(), model.config.hidden_size);
        let half = |first| Place::heads(first, rows, 1, hidden).in_rows_of(2 * hidden);
        let whole = Place::heads(0, rows, 1, hidden);
        backend.embed(&model.embedding, tokens, &mut s.embedded);
        backend.norm(&self.embedding_norm, &s.embedded, rows, &mut s.normed);
        backend.copy((&s.normed, whole), (&mut s.joined, half(0)));
        backend.norm(&self.hidden_norm, &s.waiting, rows, &mut s.normed);
        backend.copy((&s.normed, whole), (&mut s.joined, half(hidden)));
        backend.linear(&self.fc, &s.joined, 0..rows, &mut s.work.x);
        s.plan.run(s.done, tokens);
        self.layer.forward(backend, &s.plan, &mut s.cache, &mut s.work);
        backend.norm(&self.norm, &s.work.x, rows, &mut s.work.hidden);
        s.done += rows;
    }
}
