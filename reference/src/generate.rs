//! Generation: the prompt pass, then rounds of draft, tree_build, tree_compile, verify, commit.
//! The token of absolute position `p` is the target's own choice with the noise of `p`; a draft is kept where it equals that
//! choice. So tokens are those of plain decoding, whoever drafts and whatever the budget.

use crate::{
    draft::{Ask, Drafter, Observed},
    error::ReferenceError,
    model::{Pass, Target},
    ops::log_softmax,
    rows::Rows,
    sample::{History, choose},
    state::State,
};
use ndarray::ArrayView1;
use specdec::{Acceptance, DraftTree, FinishReason, GenerateRequest, Generation, RoundRecord, StageTimes, Token};
use std::{ops::ControlFlow, time::Instant};

/// A sequence being generated.
pub(crate) struct Session<'a> {
    target: &'a Target,
    request: &'a GenerateRequest,
    /// Tokens that may be emitted; no position at or beyond the context.
    cap: usize,
    drafter: Drafter<'a>,
    /// All tokens but the root.
    pub(crate) state: State,
    /// Prompt and answer; the last is the root.
    tokens: Vec<u32>,
    answer: Vec<Token>,
    finish: Option<FinishReason>,
}

/// What a verification gave.
struct Verdict {
    pass: Pass,
    samples: Vec<u32>,
    acceptance: Acceptance,
}

/// Answers a request. `emit` gets every token as it is decided and may end the answer.
pub(crate) fn generate<'a>(
    target: &'a Target,
    drafter: Drafter<'a>,
    request: &'a GenerateRequest,
    emit: &mut dyn FnMut(Token) -> ControlFlow<()>,
) -> Result<Generation, ReferenceError> {
    let mut session = Session::new(target, drafter, request)?;
    let start = Instant::now();
    session.prefill(emit)?;
    let prefill_s = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let mut rounds = Vec::new();
    while session.finish.is_none() {
        rounds.push(session.round(emit)?);
    }
    let decode_s = start.elapsed().as_secs_f64();
    let finish_reason = session.finish.unwrap_or(FinishReason::Length);
    Ok(Generation { tokens: session.answer, rounds, finish_reason, prefill_s, decode_s })
}

impl<'a> Session<'a> {
    pub(crate) fn new(target: &'a Target, drafter: Drafter<'a>, request: &'a GenerateRequest) -> Result<Self, ReferenceError> {
        let cap = request.check(&target.config)?;
        let state = State::new(&target.config);
        Ok(Self { target, request, cap, drafter, state, tokens: request.prompt.clone(), answer: vec![], finish: None })
    }

    /// Runs the whole prompt; its last row chooses the first token, which is no round.
    pub(crate) fn prefill(&mut self, emit: &mut dyn FnMut(Token) -> ControlFlow<()>) -> Result<(), ReferenceError> {
        let taps = self.drafter.taps().to_vec();
        let mut seen = Observed::none(self.target.config.hidden_size, taps.len());
        let mut last = None;
        let mut finite = Ok(());
        self.target.run(&self.request.prompt, &mut self.state, &mut |pass| {
            seen.extend(&Observed::of(pass, &taps, &Vec::from_iter(0..pass.hidden.nrows())));
            last = pass.logits.outer_iter().next_back().map(|row| row.to_owned());
            finite = std::mem::replace(&mut finite, Ok(())).and(check_finite(pass));
        });
        finite?;
        let logits = last.expect("a checked prompt has a token");
        let first = self.choose(logits.view(), &[], self.tokens.len());
        self.emit(first, logits.view(), emit);
        self.drafter.observe(self.target, &self.tokens[1..], &seen);
        Ok(())
    }

    /// One target pass and what comes of it.
    pub(crate) fn round(&mut self, emit: &mut dyn FnMut(Token) -> ControlFlow<()>) -> Result<RoundRecord, ReferenceError> {
        let (position, budget, root) = (self.state.length, self.request.budget, self.tokens[self.tokens.len() - 1]);
        let mut times = StageTimes::default();
        // A row at depth d emits token d + 1 of the round: deeper rows than the cap still allows would be wasted.
        let room = self.cap - self.answer.len() - 1;
        let proposal = timed(&mut times.draft_s, || {
            self.drafter.draft(&Ask {
                target: self.target,
                tokens: &self.tokens,
                budget: budget.nodes(),
                room,
                temperature: self.request.sampling.temperature.into(),
                seed: self.request.sampling.seed,
            })
        });
        let tree = timed(&mut times.tree_build_s, || proposal.build(root, budget.nodes()))
            .map_err(|e| ReferenceError::Tree { found: e.to_string(), expected: "a well-formed draft".into() })?;
        let rows = timed(&mut times.tree_compile_s, || Rows::tree(&tree, position));
        let verdict = timed(&mut times.verify_s, || self.verify(&tree, &rows))?;
        let emitted = self.emit_accepted(&verdict, emit);
        timed(&mut times.commit_s, || self.commit(&verdict, emitted));
        Ok(RoundRecord { position: position as u64, budget, tree, acceptance: verdict.acceptance, emitted, times })
    }

    /// The target's pass over all rows, and its own choice after each. Penalties see the path that leads to the row.
    fn verify(&self, tree: &DraftTree, rows: &Rows) -> Result<Verdict, ReferenceError> {
        let pass = self.target.forward(tree.tokens(), rows, &self.state);
        check_finite(&pass)?;
        let sample = |row: usize| {
            let path: Vec<u32> = tree.path(row)[1..].iter().map(|&node| tree.tokens()[node]).collect();
            self.choose(pass.logits.row(row), &path, rows.positions[row] + 1)
        };
        let samples: Vec<u32> = (0..tree.rows()).map(sample).collect();
        let acceptance = tree.follow(&samples);
        Ok(Verdict { pass, samples, acceptance })
    }

    /// Emits the accepted path's tokens and the one after it, as far as the answer goes. Returns how many.
    fn emit_accepted(&mut self, verdict: &Verdict, emit: &mut dyn FnMut(Token) -> ControlFlow<()>) -> usize {
        let mut emitted = 0;
        for row in verdict.acceptance.committed_rows() {
            self.emit(verdict.samples[row], verdict.pass.logits.row(row), emit);
            emitted += 1;
            if self.finish.is_some() {
                break;
            }
        }
        emitted
    }

    /// The root and the accepted rows become part of the state, as far as they were emitted; the last emitted token is the
    /// next root and is not.
    fn commit(&mut self, verdict: &Verdict, emitted: usize) {
        let path: Vec<usize> = verdict.acceptance.committed_rows().take(emitted).collect();
        self.state.commit(&verdict.pass.layers, &path);
        let seen = Observed::of(&verdict.pass, self.drafter.taps(), &path);
        let next_tokens = &self.tokens[self.tokens.len() - emitted..];
        self.drafter.observe(self.target, next_tokens, &seen);
    }

    /// The target's token for `position` after the answer so far and `path`.
    fn choose(&self, logits: ArrayView1<f64>, path: &[u32], position: usize) -> u32 {
        let (prompt, answer) = self.tokens.split_at(self.request.prompt.len());
        let answer = [answer, path].concat();
        choose(logits, &self.request.sampling, &History { prompt, answer: &answer }, position as u64)
    }

    fn emit(&mut self, id: u32, logits: ArrayView1<f64>, emit: &mut dyn FnMut(Token) -> ControlFlow<()>) {
        let token = Token { id, log_prob: log_softmax(logits)[id as usize] as f32 };
        self.tokens.push(id);
        self.answer.push(token);
        let told_to_stop = emit(token).is_break();
        if told_to_stop || self.request.stop_tokens.contains(&id) {
            self.finish = Some(FinishReason::Stop);
        } else if self.answer.len() == self.cap {
            self.finish = Some(FinishReason::Length);
        }
    }
}

/// Finite weights can still overflow; a choice among NaNs would be no choice.
pub(crate) fn check_finite(pass: &Pass) -> Result<(), ReferenceError> {
    match pass.logits.iter().find(|logit| !logit.is_finite()) {
        Some(logit) => Err(ReferenceError::Overflow { found: *logit }),
        None => Ok(()),
    }
}

fn timed<T>(seconds: &mut f64, stage: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = stage();
    *seconds = start.elapsed().as_secs_f64();
    result
}

#[cfg(test)]
#[path = "generate_tests.rs"]
mod tests;
