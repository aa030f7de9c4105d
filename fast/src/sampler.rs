//! The token of one position from one row of logits: penalties, temperature, filters, Gumbel noise, in the order that
//! [`specdec::SamplingOptions`] states. A pure function of (row, history, options, position), in f32:
//! * penalties: repetition first (divide above 0, multiply at or below), then `- presence`, then `- count * frequency`;
//! * temperature: `x * (1 / T)`, the reciprocal rounded once and kept below 1e30;
//! * the mass of the kept law: after top-k the sum of `exp(x - max)` in falling order of x, else the 128-lane sum over all ids;
//! * top-p: the running sum in falling order, until it reaches `top_p * mass`; min-p: `exp(x - max) >= min_p`.
//!
//! Knows nothing of trees: whoever walks the accepted path asks row by row.

use crate::history::History;
use crate::kernels::{Pool, math, noise, reduce};
use specdec::philox::TokenNoise;
use specdec::{SamplingParams, Token};

/// Candidates looked at first when only top-p limits them; grown by this factor until the mass is reached.
const FIRST_CANDIDATES: usize = 256;

/// Options and work memory of one request.
pub(crate) struct Sampler {
    params: SamplingParams,
    inverse_temperature: f32,
    values: Vec<f32>,
    noise: Vec<f32>,
    candidates: Vec<(u32, f32)>,
}

impl Sampler {
    /// Work memory for rows of `vocab` logits.
    pub fn new(params: SamplingParams, vocab: usize) -> Self {
        let inverse_temperature = if params.is_greedy() { 1.0 } else { (1.0 / params.temperature).min(1e30) };
        let noise = if params.is_greedy() { vec![] } else { vec![0.0; vocab] };
        Self { params, inverse_temperature, values: vec![0.0; vocab], noise, candidates: Vec::with_capacity(vocab) }
    }

    /// The token that will occupy `position`, and its log-probability under the raw logits.
    pub fn choose(&mut self, pool: &Pool, logits: &[f32], history: &History, position: u64) -> Token {
        let id = self.token(pool, logits, history, position);
        Token { id, log_prob: logits[id as usize] - log_sum_exp(pool, logits) }
    }

    /// What the law of [`choose`](Self::choose) says of some tokens: log-probability, `None` where a filter excludes it, and how
    /// many tokens are preferred to it. At temperature 0 the softmax of the penalised logits. For records, so its sums are in
    /// f64 and no part of the engine's order of operations.
    pub fn law(&mut self, pool: &Pool, logits: &[f32], history: &History, tokens: &[u32]) -> Vec<(Option<f32>, usize)> {
        self.values.copy_from_slice(logits);
        if self.params.has_penalties() {
            self.penalise(history);
        }
        let mut least = f32::NEG_INFINITY;
        self.candidates.clear();
        if !self.params.is_greedy() {
            self.values.iter_mut().for_each(|x| *x *= self.inverse_temperature);
            if self.limited() || self.params.top_p < 1.0 {
                self.keep(pool);
                least = self.candidates.iter().fold(f32::INFINITY, |least, c| least.min(c.1));
            } else if self.params.min_p > 0.0 {
                let max = self.values[largest(pool, &self.values) as usize];
                let kept = |x: &f32| math::exp(x - max) >= self.params.min_p;
                least = self.values.iter().copied().filter(|x| kept(x)).fold(max, f32::min);
            }
        }
        let top = self.values[largest(pool, &self.values) as usize];
        let weight = |x: f32| f64::from(x - top).exp();
        let mass: f64 = match self.candidates.is_empty() {
            true => self.values.iter().filter(|x| **x >= least).map(|&x| weight(x)).sum(),
            false => self.candidates.iter().map(|c| weight(c.1)).sum(),
        };
        let view = |&token: &u32| {
            let x = self.values[token as usize];
            let kept = x >= least && (self.candidates.is_empty() || self.candidates.iter().any(|c| c.0 == token));
            let preferred = |(id, y): (usize, &f32)| *y > x || (*y == x && id < token as usize);
            let rank = self.values.iter().enumerate().filter(|&other| preferred(other)).count();
            (kept.then(|| (f64::from(x - top) - mass.ln()).min(0.0) as f32), rank)
        };
        tokens.iter().map(view).collect()
    }

    fn token(&mut self, pool: &Pool, logits: &[f32], history: &History, position: u64) -> u32 {
        if self.params.is_greedy() && !self.params.has_penalties() {
            return largest(pool, logits);
        }
        self.values.copy_from_slice(logits);
        if self.params.has_penalties() {
            self.penalise(history);
        }
        if self.params.is_greedy() {
            return largest(pool, &self.values);
        }
        for x in &mut self.values {
            *x *= self.inverse_temperature;
        }
        let noise = TokenNoise::new(self.params.seed, position);
        let p = &self.params;
        if !self.limited() && p.top_p == 1.0 {
            return self.over_all(pool, &noise);
        }
        self.keep(pool);
        let mut best = (0, f32::NEG_INFINITY);
        self.candidates.sort_unstable_by_key(|c| c.0);
        for &(id, x) in &self.candidates {
            let score = x + noise::gumbel_of(noise, id);
            if score > best.1 {
                best = (id, score);
            }
        }
        best.0
    }

    /// Whether top-k cuts anything off.
    fn limited(&self) -> bool {
        self.params.top_k > 0 && self.params.top_k < self.values.len()
    }

    fn penalise(&mut self, history: &History) {
        let p = &self.params;
        for (id, x) in self.values.iter_mut().enumerate().filter(|(id, _)| history.seen(*id)) {
            if *x > 0.0 {
                *x /= p.repetition_penalty;
            } else {
                *x *= p.repetition_penalty;
            }
            let count = history.count(id);
            if count > 0 {
                *x -= p.presence_penalty;
                *x -= count as f32 * p.frequency_penalty;
            }
        }
    }

    /// Gumbel-max over every id, or those that min-p keeps.
    fn over_all(&mut self, pool: &Pool, noise: &TokenNoise) -> u32 {
        noise::gumbel(pool, *noise, &mut self.noise);
        if self.params.min_p > 0.0 {
            let max = self.values[largest(pool, &self.values) as usize];
            for x in &mut self.values {
                if math::exp(*x - max) < self.params.min_p {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
        for (x, g) in self.values.iter_mut().zip(&self.noise) {
            *x += g;
        }
        largest(pool, &self.values)
    }

    /// Fills `candidates` with what top-k, top-p and min-p keep.
    fn keep(&mut self, pool: &Pool) {
        let (vocab, p) = (self.values.len(), &self.params);
        let limited = self.limited();
        let mut asked = if limited { p.top_k } else { FIRST_CANDIDATES.min(vocab) };
        let max = self.values[largest(pool, &self.values) as usize];
        let all = if limited { 0.0 } else { math::exp(log_sum_exp(pool, &self.values) - max) };
        loop {
            top(pool, &self.values, asked, &mut self.candidates);
            let falling = |sum: f32, c: &(u32, f32)| sum + math::exp(c.1 - max);
            let mass = if limited { self.candidates.iter().fold(0.0, falling) } else { all };
            let mut sum = 0.0;
            let reached = self.candidates.iter().position(|c| {
                sum = falling(sum, c);
                sum >= p.top_p * mass
            });
            match reached {
                Some(last) if p.top_p < 1.0 => self.candidates.truncate(last + 1),
                None if !limited && asked < vocab => {
                    asked = (asked * 8).min(vocab);
                    continue;
                }
                _ => {}
            }
            break;
        }
        let min_p = p.min_p;
        self.candidates.retain(|c| math::exp(c.1 - max) >= min_p);
    }
}

/// The `k` largest values with their ids, falling, equal values by rising id. Replaces `out`; allocates nothing when `out`
/// has room for `k`.
pub(crate) fn top(pool: &Pool, values: &[f32], k: usize, out: &mut Vec<(u32, f32)>) {
    out.clear();
    out.resize(k.min(values.len()), (0, 0.0));
    let found = reduce::top_k(pool, values, out);
    out.truncate(found);
}

/// Id of the largest value, ties to the lowest.
pub(crate) fn largest(pool: &Pool, values: &[f32]) -> u32 {
    let mut id = [0];
    reduce::argmax(pool, values, values.len(), &mut id);
    id[0]
}

/// `log(sum(exp(values)))`.
pub(crate) fn log_sum_exp(pool: &Pool, values: &[f32]) -> f32 {
    let mut total = [0.0];
    reduce::log_sum_exp(pool, values, values.len(), &mut total);
    total[0]
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
