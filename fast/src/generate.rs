//! Generation: the prompt pass, then rounds of five calls (draft, tree_build, tree_compile, verify, commit) until the answer
//! ends. The walk over a verified tree is plain decoding that finds its rows already computed: the same sampler, the same
//! history, the same positions. So budgets, drafters and trees change the time and nothing else.

use crate::FastError;
use crate::auto::BudgetPolicy;
use crate::candidates::Proposer;
use crate::drafter::{Drafter, Root};
use crate::engine::Parts;
use crate::history::History;
use crate::kernels::{FlushGuard, Pool};
use crate::sampler::Sampler;
use crate::session::Session;
use specdec::{
    Acceptance, Budget, DraftTree, DrafterKind, FinishReason, GenerateRequest, Generation, RoundRecord, StageTimes, TableMemory,
    Token,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// Who sets the budget of a round.
pub(crate) enum Budgets<'a> {
    Fixed(Budget),
    Auto(Box<BudgetPolicy<'a>>),
    Table(TableMemory<'a>),
}

/// The answer so far and the rules that end it.
struct Answer<'a> {
    history: History,
    sampler: Sampler,
    tokens: Vec<Token>,
    stop_tokens: &'a [u32],
    cap: usize,
    finish: Option<FinishReason>,
    on_token: &'a mut dyn FnMut(Token) -> ControlFlow<()>,
}

/// Runs a request to its end. See [`Engine::generate`](crate::Engine::generate).
pub(crate) fn generate(
    parts: &Arc<Parts>,
    request: &GenerateRequest,
    mut budgets: Budgets,
    on_token: &mut dyn FnMut(Token) -> ControlFlow<()>,
) -> Result<Generation, FastError> {
    let _flush = FlushGuard::new();
    let (config, pool) = (&parts.model.config, parts.backend.pool());
    let cap = request.check(config)?;
    parts.require(request.drafter)?;
    let off = matches!(budgets, Budgets::Fixed(budget) if budget.is_off());
    let kind = if off { DrafterKind::Off } else { request.drafter };
    let (prompt, vocab) = (request.prompt.len(), config.vocab_size);
    let mut proposer = Proposer::new(&request.sampling, vocab, parts.mask_token(kind));
    let mut answer = Answer {
        history: History::new(&request.prompt, vocab),
        sampler: Sampler::new(request.sampling, vocab),
        tokens: Vec::with_capacity(cap),
        stop_tokens: &request.stop_tokens,
        cap,
        finish: None,
        on_token,
    };
    let mut rounds = Vec::new();

    let start = Instant::now();
    let mut session = Session::new(parts.clone(), kind, prompt + cap);
    let logits = session.prefill(&request.prompt)?;
    answer.take(pool, logits, prompt as u64);
    let prefill_s = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let finish_reason = loop {
        if let Some(reason) = answer.finish {
            break reason;
        }
        let position = (prompt + answer.tokens.len() - 1) as u64;
        let budget = match &mut budgets {
            Budgets::Fixed(budget) => *budget,
            Budgets::Auto(policy) => policy.choose(position),
            Budgets::Table(table) => table.choose(position as usize),
        };
        let round = answer.round(parts, &mut session, &mut proposer, (budget, position))?;
        match &mut budgets {
            Budgets::Fixed(_) => {}
            Budgets::Auto(policy) => policy.observe(&round),
            Budgets::Table(table) => table.observe(budget, round.acceptance.accepted() as f64),
        }
        rounds.push(round);
    };
    let decode_s = start.elapsed().as_secs_f64();
    Ok(Generation { tokens: answer.tokens, rounds, finish_reason, prefill_s, decode_s })
}

impl Answer<'_> {
    /// One round: its root is the last emitted token, at `position`.
    fn round(
        &mut self,
        parts: &Parts,
        session: &mut Session,
        proposer: &mut Proposer,
        (budget, position): (Budget, u64),
    ) -> Result<RoundRecord, FastError> {
        let mut times = StageTimes::default();
        let token = self.tokens[self.tokens.len() - 1].id;
        // A row at depth d yields the token after it, so deeper rows than this could yield nothing that may be emitted.
        let depth = self.cap - self.tokens.len() - 1;
        let root = Root { token, position, budget: budget.nodes(), depth };
        let drafting = !budget.is_off() && depth > 0 && !matches!(session.drafter(), Drafter::Off);
        let tree = if drafting {
            let clock = Instant::now();
            let proposal = session.drafter().propose(parts, proposer, &self.history, root);
            times.draft_s = clock.elapsed().as_secs_f64();
            let clock = Instant::now();
            let tree = session.drafter().build(parts, proposer, &proposal, root);
            times.tree_build_s = clock.elapsed().as_secs_f64();
            tree.expect("drafters list parents first, distinct siblings and log-probabilities of at most 0")
        } else {
            DraftTree::root(token)
        };
        let before = self.tokens.len();
        let pool = parts.backend.pool();
        let acceptance = if tree.drafted() == 0 {
            // The root is committed whatever follows, so a round without drafts advances the state in place.
            let clock = Instant::now();
            let logits = session.prefill(&[token])?;
            let next_token = self.take(pool, logits, position + 1);
            times.verify_s = clock.elapsed().as_secs_f64();
            Acceptance { path: vec![], next_token }
        } else {
            let clock = Instant::now();
            session.compile(&tree)?;
            times.tree_compile_s = clock.elapsed().as_secs_f64();
            let clock = Instant::now();
            let logits = session.verify_compiled();
            let acceptance = self.walk(pool, &tree, logits, position);
            times.verify_s = clock.elapsed().as_secs_f64();
            let clock = Instant::now();
            let kept = self.tokens.len() - before;
            let path: Vec<usize> = acceptance.committed_rows().take(kept).collect();
            session.commit(&path)?;
            times.commit_s = clock.elapsed().as_secs_f64();
            acceptance
        };
        Ok(RoundRecord { position, budget, tree, acceptance, emitted: self.tokens.len() - before, times })
    }

    /// Walks from the root along the children that equal the target's choices, emitting each choice. When the answer ends
    /// on the way the walk goes on silently: the record says what the target decided.
    fn walk(&mut self, pool: &Pool, tree: &DraftTree, logits: &[f32], position: u64) -> Acceptance {
        let vocab = logits.len() / tree.rows();
        let (mut path, mut row, mut shown) = (vec![], 0, self.finish.is_none());
        loop {
            let at = position + tree.depths()[row] as u64 + 1;
            let logits = &logits[row * vocab..(row + 1) * vocab];
            let token = if shown {
                self.take(pool, logits, at)
            } else {
                let token = self.sampler.choose(pool, logits, &self.history, at).id;
                self.history.push(token);
                token
            };
            shown = self.finish.is_none();
            match tree.child(row, token) {
                Some(child) => {
                    path.push(child);
                    row = child;
                }
                None => {
                    self.history.truncate(self.tokens.len());
                    return Acceptance { path, next_token: token };
                }
            }
        }
    }

    /// Chooses and emits the token that will occupy `position`.
    fn take(&mut self, pool: &Pool, logits: &[f32], position: u64) -> u32 {
        let token = self.sampler.choose(pool, logits, &self.history, position);
        self.history.push(token.id);
        self.tokens.push(token);
        let told_to_stop = (self.on_token)(token).is_break();
        if told_to_stop || self.stop_tokens.contains(&token.id) {
            self.finish = Some(FinishReason::Stop);
        } else if self.tokens.len() == self.cap {
            self.finish = Some(FinishReason::Length);
        }
        token.id
    }
}
