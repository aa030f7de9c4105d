//! How the target chooses a token: the exact law that logits and sampling options mean, and the Gumbel-max choice from it
//! with the noise of the token's absolute position. The order of steps is `specdec::SamplingOptions`'; options are the
//! f32 values they are stored as, arithmetic is f64. Knows nothing of models or drafts.

use ndarray::{Array1, ArrayView1};
use specdec::{SamplingParams, philox::TokenNoise};

/// The tokens before the one to choose.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// The prompt. Counts for the repetition penalty only.
    pub prompt: &'a [u32],
    /// The answer so far, the path of a draft tree included. Counts for every penalty.
    pub answer: &'a [u32],
}

/// The law of the next token, \[V\]: exactly 0 for tokens that a filter dropped. Greedy: all mass on the largest logit.
/// `logits`: \[V\], of which at least one is finite and none is NaN or +inf.
pub fn law(logits: ArrayView1<f64>, params: &SamplingParams, history: &History) -> Array1<f64> {
    let logits = penalised(logits, params, history);
    if params.is_greedy() {
        let best = falling(&logits)[0];
        return Array1::from_shape_fn(logits.len(), |x| if x == best { 1.0 } else { 0.0 });
    }
    let z = logits / f64::from(params.temperature);
    let mut kept = falling(&z);
    if params.top_k > 0 {
        kept.truncate(params.top_k);
    }
    let p = softmax(&z, &kept);
    kept.truncate(shortest_prefix(&p, &kept, f64::from(params.top_p)));
    let least = f64::from(params.min_p) * p[kept[0]];
    kept.retain(|&x| p[x] >= least);
    softmax(&z, &kept)
}

/// The token of absolute position `position`: argmax of ln p(x) + g(x), ties to the lowest id (Gumbel-max).
/// Which rows shared the pass, who drafted and in what order choices are made does not enter.
pub fn choose(logits: ArrayView1<f64>, params: &SamplingParams, history: &History, position: u64) -> u32 {
    let p = law(logits, params, history);
    let noise = TokenNoise::new(params.seed, position);
    let score = |x: usize| p[x].ln() + gumbel(&noise, x as u32);
    let kept: Vec<usize> = (0..p.len()).filter(|&x| p[x] > 0.0).collect();
    kept.into_iter().reduce(|best, x| if score(x) > score(best) { x } else { best }).unwrap_or(0) as u32
}

/// Standard Gumbel noise of one token, g = -ln(-ln u); finite because u is strictly inside (0, 1).
pub fn gumbel(noise: &TokenNoise, token: u32) -> f64 {
    -(-f64::from(noise.uniform(token)).ln()).ln()
}

/// Repetition: logits above 0 are divided, others multiplied, for tokens of prompt or answer. Presence and frequency:
/// subtracted, for tokens of the answer.
fn penalised(logits: ArrayView1<f64>, params: &SamplingParams, history: &History) -> Array1<f64> {
    let repetition = f64::from(params.repetition_penalty);
    let mut out = logits.to_owned();
    for (x, logit) in (0u32..).zip(out.iter_mut()) {
        let count = history.answer.iter().filter(|&&t| t == x).count();
        if count > 0 || history.prompt.contains(&x) {
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
        }
        if count > 0 {
            *logit -= f64::from(params.presence_penalty) + f64::from(params.frequency_penalty) * count as f64;
        }
    }
    out
}

/// All ids by falling value, equal values by rising id.
fn falling(values: &Array1<f64>) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..values.len()).collect();
    // Compared as numbers: total_cmp would put +0 before -0, though their probabilities are equal.
    ids.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).expect("logits are not NaN").then(a.cmp(&b)));
    ids
}

/// softmax(z) over the kept ids, 0 elsewhere.
fn softmax(z: &Array1<f64>, kept: &[usize]) -> Array1<f64> {
    let largest = z[kept[0]];
    let mut p = Array1::zeros(z.len());
    for &x in kept {
        p[x] = (z[x] - largest).exp();
    }
    let total = p.sum();
    p / total
}

/// Length of the shortest prefix of `ranked` with at least mass `top_p`.
fn shortest_prefix(p: &Array1<f64>, ranked: &[usize], top_p: f64) -> usize {
    // A rounded running sum may reach 1 before the last token; 1 keeps all.
    if top_p >= 1.0 {
        return ranked.len();
    }
    let mut mass = 0.0;
    for (length, &x) in (1..).zip(ranked) {
        mass += p[x];
        if mass >= top_p {
            return length;
        }
    }
    ranked.len()
}

#[cfg(test)]
#[path = "sample_tests.rs"]
mod tests;
