//! Recording acceptance: at chosen roots of an answer the drafter's tree, and what the target thinks of every drafted node.
//! A draft is a function of the committed tokens alone, so a root that decoding would have jumped over gets the very tree it
//! would have got: a tree at every position says what every smaller budget would have done. Writes no file.

use crate::FastError;
use crate::candidates::Proposer;
use crate::drafter::{Drafter, Root};
use crate::engine::Parts;
use crate::history::History;
use crate::kernels::{FlushGuard, Pool};
use crate::sampler::Sampler;
use crate::session::Session;
use specdec::{Acceptance, DraftTree, GenerateRequest, Token};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Arc;

/// At which tokens of an answer a tree is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceRoots {
    /// Where the rounds of the request's own budget begin.
    Visited,
    /// At every so many tokens, from the first on; 1 is every position.
    Every(NonZeroUsize),
}

/// The target's view of one drafted node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetEdge {
    /// Log-probability of the token at its parent under the sampling law; at temperature 0 under the softmax of the logits
    /// after penalties. `None` where a filter excludes the token.
    pub log_prob: Option<f32>,
    /// Tokens that the target prefers, 0 for its first choice; equal logits by rising id.
    pub rank: usize,
}

/// One recorded root.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedRound {
    /// Absolute position of the root.
    pub position: u64,
    /// The drafter's tree; the root alone where nothing was drafted.
    pub tree: DraftTree,
    /// `[i]`: the node of row `i + 1`.
    pub edges: Vec<TargetEdge>,
    /// What the target decided, beyond the end of the answer too.
    pub acceptance: Acceptance,
}

/// Answers a request and shows every recorded root to `each`, whose break ends the recording after it.
/// See [`Engine::trace`](crate::Engine::trace).
pub(crate) fn trace(
    parts: &Arc<Parts>,
    request: &GenerateRequest,
    roots: TraceRoots,
    each: &mut dyn FnMut(TracedRound) -> ControlFlow<()>,
) -> Result<Vec<Token>, FastError> {
    let _flush = FlushGuard::new();
    let (config, pool) = (&parts.model.config, parts.backend.pool());
    let cap = request.check(config)?;
    parts.require(request.drafter)?;
    let (kind, prompt, vocab) = (request.drafter, request.prompt.len(), config.vocab_size);
    let mut proposer = Proposer::new(&request.sampling, vocab, parts.mask_token(kind));
    let mut watcher = Watcher { history: History::new(&request.prompt, vocab), sampler: Sampler::new(request.sampling, vocab) };
    let mut session = Session::new(parts.clone(), kind, prompt + cap);
    let first = watcher.choose(pool, session.prefill(&request.prompt)?, prompt as u64);
    watcher.history.push(first.id);
    let mut tokens = vec![first];
    while tokens.len() < cap && !request.stop_tokens.contains(&tokens[tokens.len() - 1].id) {
        let root = tokens[tokens.len() - 1].id;
        let position = (prompt + tokens.len() - 1) as u64;
        let wanted = match roots {
            TraceRoots::Visited => true,
            TraceRoots::Every(step) => (tokens.len() - 1) % step == 0,
        };
        if !wanted {
            let token = watcher.choose(pool, session.prefill(&[root])?, position + 1);
            watcher.history.push(token.id);
            tokens.push(token);
            continue;
        }
        // The same limit as in decoding: deeper rows could yield nothing that may be emitted.
        let depth = cap - tokens.len() - 1;
        let root = Root { token: root, position, budget: request.budget.nodes(), depth };
        let tree = if root.budget == 0 || depth == 0 || matches!(session.drafter(), Drafter::Off) {
            DraftTree::root(root.token)
        } else {
            let proposal = session.drafter().propose(parts, &mut proposer, &watcher.history, root);
            let tree = session.drafter().build(parts, &proposer, &proposal, root);
            tree.expect("drafters list parents first, distinct siblings and log-probabilities of at most 0")
        };
        let logits = session.verify(&tree)?;
        let edges = watcher.edges(pool, &tree, logits);
        let (walked, path) = watcher.walk(pool, &tree, logits, position);
        let next_token = walked[walked.len() - 1].id;
        let kept = match roots {
            TraceRoots::Every(_) => 1,
            TraceRoots::Visited => {
                let end = walked.iter().position(|t| request.stop_tokens.contains(&t.id)).map_or(walked.len(), |i| i + 1);
                end.min(cap - tokens.len())
            }
        };
        let rows: Vec<usize> = std::iter::once(0).chain(path.iter().copied()).take(kept).collect();
        session.commit(&rows)?;
        for token in &walked[..kept] {
            watcher.history.push(token.id);
            tokens.push(*token);
        }
        if each(TracedRound { position, tree, edges, acceptance: Acceptance { path, next_token } }).is_break() {
            break;
        }
    }
    Ok(tokens)
}

/// The target's choices and opinions along a tree.
struct Watcher {
    history: History,
    sampler: Sampler,
}

impl Watcher {
    fn choose(&mut self, pool: &Pool, logits: &[f32], position: u64) -> Token {
        self.sampler.choose(pool, logits, &self.history, position)
    }

    /// The tokens that the tree yields, from the root's to the one after the path, and the path. Leaves no history behind.
    fn walk(&mut self, pool: &Pool, tree: &DraftTree, logits: &[f32], position: u64) -> (Vec<Token>, Vec<usize>) {
        let vocab = logits.len() / tree.rows();
        let before = self.history.answer_len();
        let (mut tokens, mut path, mut row) = (vec![], vec![], 0);
        loop {
            let at = position + tree.depths()[row] as u64 + 1;
            let token = self.choose(pool, &logits[row * vocab..][..vocab], at);
            self.history.push(token.id);
            tokens.push(token);
            let Some(child) = tree.child(row, token.id) else { break };
            path.push(child);
            row = child;
        }
        self.history.truncate(before);
        (tokens, path)
    }

    fn edges(&mut self, pool: &Pool, tree: &DraftTree, logits: &[f32]) -> Vec<TargetEdge> {
        let vocab = logits.len() / tree.rows();
        let before = self.history.answer_len();
        let mut edges = vec![TargetEdge { log_prob: None, rank: 0 }; tree.drafted()];
        for row in 0..tree.rows() {
            let children: Vec<usize> = tree.children(row).collect();
            if children.is_empty() {
                continue;
            }
            // Penalties see the node's own path.
            tree.path(row)[1..].iter().for_each(|&r| self.history.push(tree.tokens()[r]));
            let tokens: Vec<u32> = children.iter().map(|&c| tree.tokens()[c]).collect();
            let law = self.sampler.law(pool, &logits[row * vocab..][..vocab], &self.history, &tokens);
            self.history.truncate(before);
            children.iter().zip(law).for_each(|(&child, (log_prob, rank))| edges[child - 1] = TargetEdge { log_prob, rank });
        }
        edges
    }
}
