//! Which tokens a drafter proposes from its logits: the most probable ones when greedy; at T > 0 Gumbel top-k with the very
//! noise that the target will use at that position, so that drafter and target tend to agree. Edges carry the unperturbed
//! log-probability. Changes acceptance only: what is emitted is always the target's own choice.

use crate::kernels::{Pool, noise};
use crate::sampler::{largest, log_sum_exp, top};
use specdec::SamplingParams;
use specdec::philox::TokenNoise;

/// How drafts are chosen in one request.
pub(crate) struct Proposer {
    greedy: bool,
    inverse_temperature: f32,
    seed: u64,
    /// The block drafter's mask, which is not a word.
    never: Option<u32>,
    values: Vec<f32>,
    noise: Vec<f32>,
    order: Vec<(u32, f32)>,
}

impl Proposer {
    /// For logits of `vocab` ids, of which `never` is not proposed.
    pub fn new(params: &SamplingParams, vocab: usize, never: Option<u32>) -> Self {
        let greedy = params.is_greedy();
        Self {
            greedy,
            inverse_temperature: if greedy { 1.0 } else { (1.0 / params.temperature).min(1e30) },
            seed: params.seed,
            never,
            values: vec![0.0; vocab],
            noise: vec![0.0; if greedy { 0 } else { vocab }],
            order: Vec::with_capacity(vocab),
        }
    }

    /// The proposal for `position` from a full row of logits, and the log-probability of its edge.
    pub fn best(&mut self, pool: &Pool, logits: &[f32], position: u64) -> (u32, f32) {
        let total = self.take(pool, logits);
        let id = match self.greedy {
            true => largest(pool, &self.values),
            false => largest(pool, self.perturbed(pool, position)),
        };
        (id, edge(self.values[id as usize] - total))
    }

    /// The `k` best candidates for `position` from a full row, with the log-probability of their edge, falling.
    pub fn marginals(&mut self, pool: &Pool, logits: &[f32], k: usize, position: u64) -> Vec<(u32, f32)> {
        let total = self.take(pool, logits);
        let mut order = std::mem::take(&mut self.order);
        match self.greedy {
            true => top(pool, &self.values, k, &mut order),
            false => top(pool, self.perturbed(pool, position), k, &mut order),
        }
        let mut chosen: Vec<_> = order.iter().map(|&(id, _)| (id, edge(self.values[id as usize] - total))).collect();
        self.order = order;
        chosen.sort_by(|a, b| b.1.total_cmp(&a.1));
        chosen
    }

    /// The `k` largest logits with their ids, falling: a shortlist to rescore.
    pub fn shortlist(&mut self, pool: &Pool, logits: &[f32], k: usize) -> Vec<(u32, f32)> {
        self.take(pool, logits);
        top(pool, &self.values, k, &mut self.order);
        self.order.clone()
    }

    /// The `width` children for `position` among rescored candidates `(id, logit)`, best first. A log-softmax over the
    /// candidates gives the edges.
    pub fn children(&self, pool: &Pool, candidates: &[(u32, f32)], width: usize, position: u64) -> Vec<(u32, f32)> {
        let logits: Vec<f32> = candidates.iter().map(|c| c.1).collect();
        let total = log_sum_exp(pool, &logits);
        let noise = TokenNoise::new(self.seed, position);
        let rank = |&(id, logit): &(u32, f32)| match self.greedy {
            true => logit,
            false => logit * self.inverse_temperature + noise::gumbel_of(noise, id),
        };
        let mut order: Vec<(u32, f32, f32)> = candidates.iter().map(|c| (c.0, rank(c), edge(c.1 - total))).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        order.truncate(width);
        order.into_iter().map(|(id, _, log_prob)| (id, log_prob)).collect()
    }

    /// Copies a row, without the id that is never proposed, and returns its log-sum-exp.
    fn take(&mut self, pool: &Pool, logits: &[f32]) -> f32 {
        self.values.copy_from_slice(logits);
        if let Some(never) = self.never {
            self.values[never as usize] = f32::NEG_INFINITY;
        }
        log_sum_exp(pool, &self.values)
    }

    /// The row divided by the temperature, plus the noise of `position`.
    fn perturbed(&mut self, pool: &Pool, position: u64) -> &[f32] {
        noise::gumbel(pool, TokenNoise::new(self.seed, position), &mut self.noise);
        for (g, x) in self.noise.iter_mut().zip(&self.values) {
            *g += x * self.inverse_temperature;
        }
        &self.noise
    }
}

/// Rounding may lift a log-probability above 0.
fn edge(log_prob: f32) -> f32 {
    log_prob.min(0.0)
}
