//! The drafters of one session behind one face: note what was committed, propose a tree. A closed set, so an enum.
//! Whatever is proposed changes speed only; the target decides every token.

use crate::backend::{Backend, Buffer};
use crate::candidates::Proposer;
use crate::dflash::DflashState;
use crate::engine::Parts;
use crate::history::History;
use crate::model::{Model, Room};
use crate::mtp::MtpState;
use crate::ngram;
use crate::weaver::WeaverState;
use specdec::{DraftTree, DrafterKind, TreeError};

/// Candidates per depth of the tree over independent positions.
const MARGINALS: usize = 16;

/// One session's drafter.
pub(crate) enum Drafter {
    Off,
    Ngram,
    Mtp(Box<MtpState>),
    /// DFlash alone: a chain, or (`tree`) the best-first tree.
    Dflash {
        state: Box<DflashState>,
        tree: bool,
    },
    Weaver {
        dflash: Box<DflashState>,
        weaver: Box<WeaverState>,
        /// The target's hidden state at the last committed token.
        last_hidden: Buffer,
    },
}

/// Where a draft starts and how far it may go.
#[derive(Clone, Copy)]
pub(crate) struct Root {
    pub token: u32,
    /// Absolute position of the root.
    pub position: u64,
    /// Nodes at most.
    pub budget: usize,
    /// Levels at most.
    pub depth: usize,
}

/// What the drafter's pass gave, before nodes are chosen.
pub(crate) enum Proposal {
    Chain(Vec<(u32, f32)>),
    Marginals(Vec<Vec<(u32, f32)>>),
    /// Weaver has read its prefix; growing runs its node steps.
    Prefix,
}

impl Drafter {
    /// The state before the first token. The parts must have the drafter.
    pub fn new(parts: &Parts, kind: DrafterKind, room: Room) -> Self {
        let (backend, model) = (&parts.backend, &parts.model);
        match (kind, &parts.mtp, &parts.dflash, &parts.weaver) {
            (DrafterKind::Ngram, ..) => Self::Ngram,
            (DrafterKind::Mtp, Some(mtp), ..) => Self::Mtp(Box::new(mtp.new_state(backend, model, room))),
            (DrafterKind::Dflash | DrafterKind::DflashTree, _, Some(dflash), _) => {
                Self::Dflash { state: Box::new(dflash.new_state(backend, model, room)), tree: kind == DrafterKind::DflashTree }
            }
            (DrafterKind::Weaver, _, Some(dflash), Some(weaver)) => Self::Weaver {
                dflash: Box::new(dflash.new_state(backend, model, room)),
                weaver: Box::new(weaver.new_state(backend, dflash.config.block_size)),
                last_hidden: backend.alloc(model.config.hidden_size),
            },
            _ => Self::Off,
        }
    }

    /// Whether the target's tapped streams are wanted.
    pub fn wants_taps(&self) -> bool {
        matches!(self, Self::Dflash { .. } | Self::Weaver { .. })
    }

    /// Notes committed rows of a pass, in order, with their tokens.
    pub fn push(&mut self, parts: &Parts, (hidden, taps): (&Buffer, &Buffer), rows: &[usize], tokens: &[u32]) {
        let (backend, model) = (&parts.backend, &parts.model);
        match (self, &parts.mtp, &parts.dflash) {
            (Self::Mtp(state), Some(mtp), _) => mtp.push(backend, model, state, (hidden, rows), tokens),
            (Self::Dflash { state, .. }, _, Some(dflash)) => dflash.push(backend, state, taps, rows),
            (Self::Weaver { dflash: state, last_hidden, .. }, _, Some(dflash)) => {
                dflash.push(backend, state, taps, rows);
                if let Some(&last) = rows.last() {
                    backend.gather(hidden, model.config.hidden_size, &[last], last_hidden, 0);
                }
            }
            _ => {}
        }
    }

    /// The drafter's pass.
    pub fn propose(&mut self, parts: &Parts, proposer: &mut Proposer, history: &History, root: Root) -> Proposal {
        let (backend, model) = (&parts.backend, &parts.model);
        let limit = root.budget.min(root.depth);
        match (self, &parts.mtp, &parts.dflash, &parts.weaver) {
            (Self::Ngram, ..) => Proposal::Chain(ngram::draft(history.tokens(), limit)),
            (Self::Mtp(state), Some(mtp), ..) => {
                Proposal::Chain(mtp.draft(backend, model, state, proposer, (root.token, root.position, limit)))
            }
            (Self::Dflash { state, tree }, _, Some(dflash), _) => {
                let depth = limit.min(dflash.config.max_depth());
                dflash.draft(backend, model, state, root.token, depth);
                let rows = rows(backend, model, state.logits(), depth).zip(root.position + 1..);
                if *tree {
                    let width = MARGINALS.min(model.config.vocab_size - 1);
                    Proposal::Marginals(rows.map(|(row, at)| proposer.marginals(backend.pool(), row, width, at)).collect())
                } else {
                    Proposal::Chain(rows.map(|(row, at)| proposer.best(backend.pool(), row, at)).collect())
                }
            }
            (Self::Weaver { dflash: state, weaver: grown, last_hidden }, _, Some(dflash), Some(weaver)) => {
                let depth = limit.min(weaver.config.max_depth);
                dflash.draft(backend, model, state, root.token, depth);
                let pool = weaver.config.pool.min(model.config.vocab_size - 1);
                let lists = rows(backend, model, state.logits(), depth)
                    .map(|row| proposer.shortlist(backend.pool(), row, pool))
                    .collect();
                weaver.begin(backend, grown, last_hidden, (state.hidden(), dflash.config.block_size), lists);
                Proposal::Prefix
            }
            _ => Proposal::Chain(vec![]),
        }
    }

    /// Chooses the nodes.
    pub fn build(&mut self, parts: &Parts, proposer: &Proposer, proposal: &Proposal, root: Root) -> Result<DraftTree, TreeError> {
        match (proposal, self, &parts.weaver) {
            (Proposal::Chain(drafts), ..) => DraftTree::chain(root.token, drafts),
            (Proposal::Marginals(marginals), ..) => DraftTree::best_first(root.token, root.budget, marginals),
            (Proposal::Prefix, Self::Weaver { weaver: state, .. }, Some(weaver)) => {
                let at = (root.token, root.position);
                Ok(weaver.grow(&parts.backend, &parts.model, state, proposer, at, (root.budget, root.depth)))
            }
            (Proposal::Prefix, ..) => Ok(DraftTree::root(root.token)),
        }
    }
}

fn rows<'a>(backend: &Backend, model: &Model, logits: &'a Buffer, rows: usize) -> impl Iterator<Item = &'a [f32]> {
    let vocab = model.config.vocab_size;
    backend.read(logits, 0, rows * vocab).chunks_exact(vocab)
}
