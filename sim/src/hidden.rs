//! The two-regime law from text: expectation and maximisation over hidden regimes (Baum and Welch), positions that no draft
//! reached being unobserved. Knows hits and misses per position only.

use crate::Law;

/// Hits (0 or 1) and misses at one position; `None` where nothing was drafted.
pub(crate) type Observation = Option<(usize, usize)>;

/// Rounds of expectation and maximisation; the likelihood rises in every one and has settled long before.
const ITERATIONS: usize = 200;

/// A smaller rise of the log-likelihood moves parameters far below their standard errors.
const SETTLED: f64 = 1e-4;

/// Fits regimes to stretches of consecutive positions; returns the law (easy first) and its log-likelihood.
pub(crate) fn fit_markov(sequences: &[Vec<Observation>]) -> (Law, f64) {
    let seen = sequences.iter().flatten().flatten();
    let (hits, misses) = seen.fold((0.0, 0.0), |(h, m), o| (h + o.0 as f64, m + o.1 as f64));
    let overall: f64 = hits / f64::max(hits + misses, 1.0);
    // Start apart on both sides of the average: equal rates are a saddle that the iteration never leaves.
    let mut alpha = [overall + 0.5 * (1.0 - overall), 0.5 * overall];
    let mut leave = [0.05, 0.05];
    let mut log_likelihood = f64::NEG_INFINITY;
    for _ in 0..ITERATIONS {
        let mut counts = Counts::default();
        let before = log_likelihood;
        log_likelihood = sequences.iter().map(|s| counts.add(s, alpha, leave)).sum();
        if log_likelihood - before < SETTLED {
            break;
        }
        for s in 0..2 {
            alpha[s] = ratio(counts.hits[s], counts.hits[s] + counts.misses[s], alpha[s]);
            leave[s] = ratio(counts.left[s], counts.left[s] + counts.stayed[s], leave[s]).max(1e-9);
        }
    }
    if alpha[0] < alpha[1] {
        (alpha, leave) = ([alpha[1], alpha[0]], [leave[1], leave[0]]);
    }
    (Law::Markov { alpha, leave }, log_likelihood)
}

fn ratio(part: f64, whole: f64, otherwise: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { otherwise }
}

/// Expected counts under the current parameters.
#[derive(Default)]
struct Counts {
    hits: [f64; 2],
    misses: [f64; 2],
    left: [f64; 2],
    stayed: [f64; 2],
}

impl Counts {
    /// One stretch: scaled forward pass, backward pass; returns its log-likelihood.
    fn add(&mut self, sequence: &[Observation], alpha: [f64; 2], leave: [f64; 2]) -> f64 {
        let emission = |o: &Observation, s: usize| match o {
            Some((h, m)) => alpha[s].powi(*h as i32) * (1.0 - alpha[s]).powi(*m as i32),
            None => 1.0,
        };
        let step = |from: usize, to: usize| if from == to { 1.0 - leave[from] } else { leave[from] };
        let easy = leave[1] / (leave[0] + leave[1]);
        let mut forward: Vec<[f64; 2]> = Vec::with_capacity(sequence.len());
        let mut log_likelihood = 0.0;
        for observation in sequence {
            let prior = match forward.last() {
                None => [easy, 1.0 - easy],
                Some(f) => [0, 1].map(|to| f[0] * step(0, to) + f[1] * step(1, to)),
            };
            let joint = [0, 1].map(|s| prior[s] * emission(observation, s));
            let scale = f64::max(joint[0] + joint[1], f64::MIN_POSITIVE);
            log_likelihood += scale.ln();
            forward.push(joint.map(|j| j / scale));
        }
        let mut backward = [1.0; 2];
        for (i, observation) in sequence.iter().enumerate().rev() {
            let joint = [0, 1].map(|s| forward[i][s] * backward[s]);
            let total = f64::max(joint[0] + joint[1], f64::MIN_POSITIVE);
            if let Some((h, m)) = observation {
                for (s, mass) in joint.iter().enumerate() {
                    self.hits[s] += mass / total * *h as f64;
                    self.misses[s] += mass / total * *m as f64;
                }
            }
            let onward = [0, 1].map(|s| emission(observation, s) * backward[s]);
            if let Some(before) = i.checked_sub(1).map(|j| forward[j]) {
                let pair = |from: usize, to: usize| before[from] * step(from, to) * onward[to];
                let whole = f64::max(pair(0, 0) + pair(0, 1) + pair(1, 0) + pair(1, 1), f64::MIN_POSITIVE);
                for s in 0..2 {
                    self.left[s] += pair(s, 1 - s) / whole;
                    self.stayed[s] += pair(s, s) / whole;
                }
            }
            let next = [0, 1].map(|from| step(from, 0) * onward[0] + step(from, 1) * onward[1]);
            let scale = f64::max(next[0] + next[1], f64::MIN_POSITIVE);
            backward = next.map(|b| b / scale);
        }
        log_likelihood
    }
}
