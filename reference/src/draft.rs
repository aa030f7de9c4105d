//! Drafting, for every kind of drafter: what is proposed under the root, and how a proposal becomes a tree.
//! A draft may be as wrong as it likes; it changes how many tokens a pass lands, never which.
//! At temperature 0 candidates are the largest draft logits. Above it they are the largest of draft logits / T plus the
//! Gumbel noise that the target will use at the same position, so that draft and target tend to agree (drafting by
//! coupling; log-probabilities stay those of the unperturbed draft).

use crate::{
    dflash::{Dflash, DflashState},
    model::{Pass, Target},
    mtp::{Mtp, MtpState},
    ngram,
    ops::log_softmax,
    sample::gumbel,
    weaver::{Path, Weaver},
};
use ndarray::{Array1, Array2, ArrayView1, Axis, concatenate, s};
use specdec::{DraftTree, Frontier, GrowPlan, TreeError, philox::TokenNoise};
use std::collections::BTreeMap;

/// Candidates per depth of the tree over DFlash's marginals.
const MARGINAL_CANDIDATES: usize = 16;
/// Nodes that Weaver expands in one step.
const EXPAND_PER_ROUND: usize = 4;
/// Children of one expansion.
const EXPAND_WIDTH: usize = 4;
/// Steps at most.
const MAX_ROUNDS: usize = 64;

/// A drafter with what it keeps of the sequence.
pub(crate) enum Drafter<'a> {
    Off,
    Ngram,
    Mtp { head: &'a Mtp, state: MtpState },
    Dflash { drafter: &'a Dflash, state: DflashState, shape: Shape<'a> },
}

/// What is made of DFlash's marginals.
pub(crate) enum Shape<'a> {
    Chain,
    Tree,
    Weaver { weaver: &'a Weaver, last_hidden: Array2<f64> },
}

/// What drafters read of committed positions.
pub(crate) struct Observed {
    /// After the final norm, `[positions, hidden]`.
    pub hidden: Array2<f64>,
    /// Tapped residual streams, `[positions, taps * hidden]`; no columns where nothing is tapped.
    pub features: Array2<f64>,
}

/// What the round wants.
pub(crate) struct Ask<'a> {
    pub target: &'a Target,
    /// Prompt and answer; the last token is the root.
    pub tokens: &'a [u32],
    /// Nodes allowed.
    pub budget: usize,
    /// Deepest row of use.
    pub room: usize,
    pub temperature: f64,
    pub seed: u64,
}

/// What a drafter says.
pub(crate) enum Proposal {
    /// Token and draft log-probability per depth.
    Chain(Vec<(u32, f32)>),
    /// Candidates per depth, best first, independent of each other.
    Marginals(Vec<Vec<(u32, f32)>>),
    /// A tree that grew while it was scored.
    Grown(Frontier),
}

impl Proposal {
    /// The tree to verify.
    pub fn build(self, root: u32, budget: usize) -> Result<DraftTree, TreeError> {
        match self {
            Self::Chain(drafts) => DraftTree::chain(root, &drafts),
            Self::Marginals(marginals) => DraftTree::best_first(root, budget, &marginals),
            Self::Grown(frontier) => Ok(frontier.finish()),
        }
    }
}

impl Ask<'_> {
    fn root(&self) -> u32 {
        self.tokens[self.tokens.len() - 1]
    }

    /// The `k` best places of `logits`, whose tokens are `token_at(place)`, for the position at `depth` below the root.
    fn best(&self, logits: ArrayView1<f64>, token_at: impl Fn(usize) -> u32, depth: usize, k: usize) -> Vec<usize> {
        let noise = TokenNoise::new(self.seed, (self.tokens.len() - 1 + depth) as u64);
        let score = |(place, &logit): (usize, &f64)| match self.temperature {
            0.0 => logit,
            t => logit / t + gumbel(&noise, token_at(place)),
        };
        let scores: Vec<f64> = logits.iter().enumerate().map(score).collect();
        let mut places: Vec<usize> = (0..scores.len()).collect();
        let order = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(token_at(*a).cmp(&token_at(*b)));
        if k < places.len() {
            places.select_nth_unstable_by(k, order);
            places.truncate(k);
        }
        places.sort_by(order);
        places
    }

    /// The same over the whole vocabulary, with log-probabilities.
    fn candidates(&self, logits: ArrayView1<f64>, depth: usize, k: usize) -> Vec<(u32, f32)> {
        let log_q = log_softmax(logits);
        let best = self.best(logits, |place| place as u32, depth, k);
        best.into_iter().map(|token| (token as u32, edge(log_q[token]))).collect()
    }
}

/// A log-probability as trees store it; rounding may lift a certain token above 0.
fn edge(log_q: f64) -> f32 {
    (log_q as f32).min(0.0)
}

impl Drafter<'_> {
    /// Layers whose residual stream it reads.
    pub fn taps(&self) -> &[usize] {
        match self {
            Self::Dflash { drafter, .. } => &drafter.config.target_layer_ids,
            _ => &[],
        }
    }

    /// Takes in committed positions, in order: `next_tokens[i]` is the token after position `i` of `seen`.
    pub fn observe(&mut self, target: &Target, next_tokens: &[u32], seen: &Observed) {
        match self {
            Self::Off | Self::Ngram => {}
            Self::Mtp { head, state } => {
                head.observe(target, next_tokens, &seen.hidden, state);
            }
            Self::Dflash { drafter, state, shape } => {
                drafter.observe(&seen.features, state);
                if let Shape::Weaver { last_hidden, .. } = shape {
                    *last_hidden = seen.hidden.slice(s![seen.hidden.nrows() - 1.., ..]).to_owned();
                }
            }
        }
    }

    /// Proposes within budget and room; leaves its own state as it was.
    pub fn draft(&self, ask: &Ask) -> Proposal {
        let depth = ask.budget.min(ask.room);
        if depth == 0 {
            return Proposal::Chain(vec![]);
        }
        match self {
            Self::Off => Proposal::Chain(vec![]),
            Self::Ngram => {
                let copied = ngram::propose(ask.tokens, depth);
                Proposal::Chain(copied.iter().map(|&token| (token, ngram::COPY_PROBABILITY.ln())).collect())
            }
            Self::Mtp { head, state } => Proposal::Chain(mtp_chain(head, state, ask, depth)),
            Self::Dflash { drafter, state, shape } => {
                let depth = drafter.config.max_depth().min(depth);
                let hidden = drafter.draft(ask.target, ask.root(), state);
                let mut logits = ask.target.logits(&hidden.slice(s![..depth, ..]).to_owned());
                // A mask is a question, never an answer.
                logits.column_mut(drafter.config.mask_token_id as usize).fill(f64::NEG_INFINITY);
                match shape {
                    Shape::Chain => {
                        let best = |(d, row)| ask.candidates(row, d + 1, 1)[0];
                        Proposal::Chain(logits.outer_iter().enumerate().map(best).collect())
                    }
                    Shape::Tree => Proposal::Marginals(marginals(&logits, ask)),
                    Shape::Weaver { weaver, last_hidden } => {
                        let path = weaver.prefix(last_hidden, &hidden);
                        Proposal::Grown(grow(weaver, &path, &logits, ask))
                    }
                }
            }
        }
    }
}

/// The head feeds on its own output; its rows of this chain are dropped with the scratch state.
fn mtp_chain(head: &Mtp, state: &MtpState, ask: &Ask, depth: usize) -> Vec<(u32, f32)> {
    let mut scratch = state.clone();
    let mut chain = Vec::with_capacity(depth);
    for d in 1..=depth {
        let logits = ask.target.logits(&scratch.last);
        let next = ask.candidates(logits.row(0), d, 1)[0];
        chain.push(next);
        if d < depth {
            let hidden = scratch.last.clone();
            head.observe(ask.target, &[next.0], &hidden, &mut scratch);
        }
    }
    chain
}

fn marginals(logits: &Array2<f64>, ask: &Ask) -> Vec<Vec<(u32, f32)>> {
    let by_depth = |(d, row)| {
        let mut candidates = ask.candidates(row, d + 1, MARGINAL_CANDIDATES);
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1));
        candidates
    };
    logits.outer_iter().enumerate().map(by_depth).collect()
}

/// Weaver's best-first tree: each expansion rescores the shortlist of its depth given the path.
fn grow(weaver: &Weaver, prefix: &Path, logits: &Array2<f64>, ask: &Ask) -> Frontier {
    let pools: Vec<Vec<usize>> = logits.outer_iter().map(|row| shortlist(row, weaver.config.pool)).collect();
    let mut frontier = Frontier::new(
        ask.root(),
        GrowPlan {
            budget: ask.budget,
            expand_per_round: EXPAND_PER_ROUND,
            expand_width: EXPAND_WIDTH,
            max_depth: weaver.config.max_depth.min(pools.len()),
            max_rounds: MAX_ROUNDS,
        },
    );
    let mut paths: BTreeMap<usize, Path> = BTreeMap::new();
    loop {
        let batch = frontier.next_batch();
        if batch.is_empty() {
            return frontier;
        }
        for entry in batch {
            let mut path = entry.parent.map_or(prefix, |parent| &paths[&parent]).clone();
            let query = weaver.node(ask.target, entry.token, entry.depth, &mut path);
            paths.insert(entry.slot, path);
            let pool = &pools[entry.depth];
            let residual = |&token: &usize| logits[[entry.depth, token]] + ask.target.head().row(token).dot(&query);
            let scores = Array1::from_iter(pool.iter().map(residual));
            let log_q = log_softmax(scores.view());
            let best = ask.best(scores.view(), |place| pool[place] as u32, entry.depth + 1, EXPAND_WIDTH);
            let children: Vec<_> = best.into_iter().map(|place| (pool[place] as u32, edge(log_q[place]))).collect();
            frontier.insert(entry.slot, &children);
        }
    }
}

/// The `k` largest logits, ties to the lower id, in rising order of id.
fn shortlist(logits: ArrayView1<f64>, k: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    ids.truncate(k);
    ids.retain(|&id| logits[id] > f64::NEG_INFINITY);
    ids.sort_unstable();
    ids
}

impl Observed {
    /// Rows of a pass along a path.
    pub fn of(pass: &Pass, taps: &[usize], path: &[usize]) -> Self {
        let features = if taps.is_empty() { Array2::zeros((path.len(), 0)) } else { pass.features(taps, path) };
        Self { hidden: pass.hidden.select(Axis(0), path), features }
    }

    /// Nothing yet.
    pub fn none(hidden: usize, taps: usize) -> Self {
        Self { hidden: Array2::zeros((0, hidden)), features: Array2::zeros((0, taps * hidden)) }
    }

    /// Further positions.
    pub fn extend(&mut self, more: &Self) {
        self.hidden = concatenate![Axis(0), self.hidden, more.hidden];
        self.features = concatenate![Axis(0), self.features, more.features];
    }
}
