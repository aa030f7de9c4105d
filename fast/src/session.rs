//! One sequence: prefill in any chunks, verify a tree, commit a path. A verification writes nothing that is committed, so
//! one that is never committed leaves no trace. All memory is planned when the session is made.

use crate::FastError;
use crate::backend::Buffer;
use crate::drafter::Drafter;
use crate::engine::Parts;
use crate::model::{CHUNK_ROWS, LayerState, Room, TREE_ROWS, Taps, Work};
use crate::plan::Plan;
use specdec::{DraftTree, DrafterKind};
use std::sync::Arc;

/// A sequence's state and work memory.
pub struct Session {
    parts: Arc<Parts>,
    state: Vec<LayerState>,
    work: Work,
    plan: Plan,
    taps: Buffer,
    logits: Buffer,
    drafter: Drafter,
    len: usize,
    room: usize,
    pending: bool,
    all_rows: Vec<usize>,
    path_tokens: Vec<u32>,
}

impl Session {
    pub(crate) fn new(parts: Arc<Parts>, kind: DrafterKind, room: usize) -> Self {
        let (backend, model) = (&parts.backend, &parts.model);
        let state_room = Room { kv: parts.kv, positions: room, staged: TREE_ROWS };
        let drafter = Drafter::new(&parts, kind, state_room);
        let tapped = match (&parts.dflash, drafter.wants_taps()) {
            (Some(dflash), true) => dflash.config.target_layer_ids.len() * dflash.config.hidden_size,
            _ => 0,
        };
        Self {
            state: model.new_state(backend, state_room),
            work: Work::new(backend, &model.config, CHUNK_ROWS, state_room),
            plan: Plan::with_room(CHUNK_ROWS),
            taps: backend.alloc(tapped * CHUNK_ROWS),
            logits: backend.alloc(TREE_ROWS * model.config.vocab_size),
            drafter,
            len: 0,
            room,
            pending: false,
            all_rows: (0..CHUNK_ROWS).collect(),
            path_tokens: Vec::with_capacity(TREE_ROWS),
            parts,
        }
    }

    /// Committed tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Commits a run of tokens and returns the logits after the last: `[vocab]`. Splitting a run into several calls changes
    /// no bit. Errors: no token, an id without an embedding, more tokens than the session has room for.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<&[f32], FastError> {
        self.run(tokens, |_, _| {}, false)?;
        let vocab = self.parts.model.config.vocab_size;
        Ok(self.parts.backend.read(&self.logits, 0, vocab))
    }

    /// As [`prefill`](Self::prefill), giving every row's logits to `each`, `[rows, vocab]` at a time.
    pub(crate) fn score(&mut self, tokens: &[u32], mut each: impl FnMut(&[f32])) -> Result<(), FastError> {
        self.run(tokens, |parts, (logits, rows)| each(parts.backend.read(logits, 0, rows * parts.model.config.vocab_size)), true)
    }

    fn run(&mut self, tokens: &[u32], mut each: impl FnMut(&Parts, (&Buffer, usize)), every: bool) -> Result<(), FastError> {
        if tokens.is_empty() {
            return Err(FastError::bounds("the number of tokens", 0, "at least 1"));
        }
        self.plan_check(tokens)?;
        self.pending = false;
        let (parts, chunks) = (self.parts.clone(), tokens.chunks(CHUNK_ROWS));
        let last = chunks.len() - 1;
        for (i, chunk) in chunks.enumerate() {
            let rows = chunk.len();
            self.plan.run(self.len, chunk);
            self.forward(&parts);
            let wanted = if every { 0..rows } else { rows - usize::from(i == last)..rows };
            for first in wanted.clone().step_by(TREE_ROWS) {
                let part = first..(first + TREE_ROWS).min(wanted.end);
                parts.backend.linear(&parts.model.head, &self.work.hidden, part.clone(), &mut self.logits);
                each(&parts, (&self.logits, part.len()));
            }
            self.drafter.push(&parts, (&self.work.hidden, &self.taps), &self.all_rows[..rows], chunk);
            self.len += rows;
        }
        Ok(())
    }

    /// Runs every row of `tree`, whose root follows the committed tokens, and returns their logits: `[rows, vocab]`.
    /// Errors: more than 33 rows, an id without an embedding, a row beyond the session's room.
    pub fn verify(&mut self, tree: &DraftTree) -> Result<&[f32], FastError> {
        self.compile(tree)?;
        Ok(self.verify_compiled())
    }

    /// The tables of the next verification.
    pub(crate) fn compile(&mut self, tree: &DraftTree) -> Result<(), FastError> {
        self.pending = false;
        if tree.rows() > TREE_ROWS {
            return Err(FastError::bounds(
                "the number of tree rows",
                tree.rows(),
                format!("at most {TREE_ROWS}, the root included"),
            ));
        }
        self.plan.tree(self.len, tree);
        self.plan.check(self.parts.model.config.vocab_size, self.room)
    }

    /// The pass over the compiled tree.
    pub(crate) fn verify_compiled(&mut self) -> &[f32] {
        let parts = self.parts.clone();
        let rows = self.plan.rows();
        self.forward(&parts);
        parts.backend.linear(&parts.model.head, &self.work.hidden, 0..rows, &mut self.logits);
        self.pending = true;
        self.parts.backend.read(&self.logits, 0, rows * parts.model.config.vocab_size)
    }

    /// Commits rows of the last verification: `path` from the root (row 0) downwards. Errors: nothing was verified, or the
    /// rows are not such a path.
    pub fn commit(&mut self, path: &[usize]) -> Result<(), FastError> {
        let parents = &self.plan.parents;
        let linked = path.windows(2).all(|w| w[1] < parents.len() && parents[w[1]] == Some(w[0]));
        if !self.pending || path.first() != Some(&0) || !linked {
            let found = path.len();
            return Err(FastError::bounds("a path to commit", found, "rows of the last verification from the root downwards"));
        }
        self.pending = false;
        let parts = self.parts.clone();
        parts.model.commit(&parts.backend, &mut self.state, &mut self.work, path);
        self.path_tokens.clear();
        self.path_tokens.extend(path.iter().map(|&row| self.plan.tokens[row]));
        self.drafter.push(&parts, (&self.work.hidden, &self.taps), path, &self.path_tokens);
        self.len += path.len();
        Ok(())
    }

    /// The recurrent state `[value_heads, key_dim, value_dim]` of a Gated DeltaNet layer and the raw rows that its convolution
    /// still needs, `[taps - 1, channels]`, oldest first. `None` for other layers.
    pub fn delta_state(&self, layer: usize) -> Option<(&[f32], &[f32])> {
        match self.state.get(layer)? {
            LayerState::Gdn(state, _) => Some(state.read(&self.parts.backend)),
            LayerState::Attention(_) => None,
        }
    }

    /// The session's drafter.
    pub(crate) fn drafter(&mut self) -> &mut Drafter {
        &mut self.drafter
    }

    fn plan_check(&self, tokens: &[u32]) -> Result<(), FastError> {
        let vocab = self.parts.model.config.vocab_size;
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(FastError::bounds("a token id", token as usize, format!("an id below the vocabulary size {vocab}")));
        }
        if self.len + tokens.len() > self.room {
            let found = self.len + tokens.len();
            return Err(FastError::bounds(
                "the length of the sequence",
                found,
                format!("at most the session's {} tokens", self.room),
            ));
        }
        Ok(())
    }

    fn forward(&mut self, parts: &Parts) {
        let taps = match &parts.dflash {
            Some(dflash) if self.drafter.wants_taps() => {
                Some(Taps { layers: &dflash.config.target_layer_ids, into: &mut self.taps })
            }
            _ => None,
        };
        parts.model.forward(&parts.backend, &self.plan, &mut self.state, &mut self.work, taps);
    }
}
