//! Hand-worked laws, and the choice against the law by chi-square with a planted bias that the same test catches.

use super::*;
use ndarray::{Array1, array};
use proptest::{prelude::*, test_runner::RngSeed};
use specdec::{DraftTree, SamplingOptions};

const NONE: History = History { prompt: &[], answer: &[] };

/// The same cases in every run.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Default::default() }
}

fn params(options: SamplingOptions) -> SamplingParams {
    SamplingParams::new(options).expect("options in range")
}

fn warm() -> SamplingOptions {
    SamplingOptions { temperature: 1.0, ..Default::default() }
}

fn assert_close(found: &Array1<f64>, expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 1e-12, "{found} instead of {expected:?}");
    }
}

fn logs(p: &[f64]) -> Array1<f64> {
    p.iter().map(|x| x.ln()).collect()
}

#[test]
fn temperature_divides_the_logits() {
    // At temperature 1/2 probabilities are squared: 9/16, 1/16 of (3/4, 1/4), renormalised by 10/16.
    let half = params(SamplingOptions { temperature: 0.5, ..warm() });
    assert_close(&law(logs(&[0.75, 0.25]).view(), &half, &NONE), &[0.9, 0.1]);
}

#[test]
fn top_k_of_zero_keeps_all_and_ties_go_to_low_ids() {
    let flat = Array1::zeros(64);
    assert_close(&law(flat.view(), &params(warm()), &NONE), &[1.0 / 64.0; 64]);
    let two = params(SamplingOptions { top_k: 2, ..warm() });
    let e = 1f64.exp();
    assert_close(&law(array![1.0, 2.0, 1.0, 1.0].view(), &two, &NONE), &[1.0 / (1.0 + e), e / (1.0 + e), 0.0, 0.0]);
    let many = params(SamplingOptions { top_k: 100, ..warm() });
    assert_close(&law(flat.view(), &many, &NONE), &[1.0 / 64.0; 64]);
}

#[test]
fn top_p_counts_mass_that_top_k_left() {
    // Of 0.4, 0.3, 0.2, 0.1 the two best hold 4/7 and 3/7: the first alone has at least 0.5, though 0.4 had not.
    let logits = logs(&[0.4, 0.3, 0.2, 0.1]);
    let both = params(SamplingOptions { top_k: 2, top_p: 0.5, ..warm() });
    assert_close(&law(logits.view(), &both, &NONE), &[1.0, 0.0, 0.0, 0.0]);
    let mass = params(SamplingOptions { top_p: 0.5, ..warm() });
    assert_close(&law(logits.view(), &mass, &NONE), &[4.0 / 7.0, 3.0 / 7.0, 0.0, 0.0]);
}

#[test]
fn top_p_takes_the_token_that_reaches_the_mass() {
    // 0.5 + 0.25 is exactly 0.75, so the third token stays out; a little more lets it in.
    let logits = array![0.0, -(2f64.ln()), -(4f64.ln()), -(4f64.ln())];
    let at = |top_p| law(logits.view(), &params(SamplingOptions { top_p, ..warm() }), &NONE);
    assert_close(&at(0.75), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    assert_close(&at(0.7501), &[4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0]);
    assert_close(&at(1e-6), &[1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn min_p_is_relative_to_the_largest_probability() {
    let logits = array![0.0, -(2f64.ln()), -(4f64.ln()), -(8f64.ln())];
    let at = |min_p| law(logits.view(), &params(SamplingOptions { min_p, ..warm() }), &NONE);
    assert_close(&at(0.2), &[4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0]);
    assert_close(&at(1.0), &[1.0, 0.0, 0.0, 0.0]);
}

/// Three tokens, answer [1, 1, 2], prompt [0]. Presence 1 and frequency 0.5: token 1 loses 2, token 2 loses 1.5, token 0
/// (in the prompt only) nothing.
#[test]
fn presence_and_frequency_count_answer_tokens_only_and_each_once() {
    let history = History { prompt: &[0], answer: &[1, 1, 2] };
    let presence = params(SamplingOptions { presence_penalty: 1.0, ..warm() });
    assert_close(&penalised(array![1.0, 2.0, 3.0].view(), &presence, &history), &[1.0, 1.0, 2.0]);
    let both = params(SamplingOptions { presence_penalty: 1.0, frequency_penalty: 0.5, ..warm() });
    assert_close(&penalised(array![1.0, 2.0, 3.0].view(), &both, &history), &[1.0, 0.0, 1.5]);
}

#[test]
fn repetition_divides_above_zero_and_multiplies_below_for_prompt_and_answer() {
    let history = History { prompt: &[0, 0], answer: &[1, 1] };
    let twice = params(SamplingOptions { repetition_penalty: 2.0, ..warm() });
    assert_close(&penalised(array![1.0, -1.0, 3.0, 0.0].view(), &twice, &history), &[0.5, -2.0, 3.0, 0.0]);
    // Penalties come before greedy's argmax, and repetition before presence: 4 / 2 - 1 = 1 < 1.5.
    let greedy = params(SamplingOptions { repetition_penalty: 2.0, presence_penalty: 1.0, ..Default::default() });
    let found = choose(array![4.0, 1.5].view(), &greedy, &History { prompt: &[], answer: &[0] }, 9);
    assert_eq!(found, 1);
}

#[test]
fn greedy_ties_go_to_the_lowest_id() {
    let found = choose(array![-1.0, 2.0, 2.0, 0.0].view(), &SamplingParams::greedy(), &NONE, 0);
    assert_eq!(found, 1);
    assert_eq!(choose(array![-0.0, 0.0].view(), &SamplingParams::greedy(), &NONE, 0), 0);
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn temperature_1_with_top_k_1_is_greedy(
        logits in prop::collection::vec(-4i32..4, 2..12), seed: u64, position: u64
    ) {
        let logits: Array1<f64> = logits.into_iter().map(f64::from).collect();
        let one = params(SamplingOptions { top_k: 1, seed, ..warm() });
        let greedy = choose(logits.view(), &SamplingParams::greedy(), &NONE, position);
        prop_assert_eq!(choose(logits.view(), &one, &NONE, position), greedy);
    }

    #[test]
    fn a_law_sums_to_one_and_only_kept_tokens_are_chosen(
        logits in prop::collection::vec(-9.0f64..9.0, 2..20), top_k in 0usize..6, top_p in 0.05f32..=1.0, min_p in 0.0f32..0.4,
        temperature in 0.05f32..3.0, seed: u64
    ) {
        let logits: Array1<f64> = logits.into();
        let params = params(SamplingOptions { temperature, top_k, top_p, min_p, seed, ..Default::default() });
        let p = law(logits.view(), &params, &NONE);
        prop_assert!((p.sum() - 1.0).abs() < 1e-12 && p.iter().all(|x| x.is_finite() && *x >= 0.0));
        for position in 0..8 {
            prop_assert!(p[choose(logits.view(), &params, &NONE, position) as usize] > 0.0);
        }
    }

    #[test]
    fn noise_is_finite(seed: u64, position: u64, token: u32) {
        prop_assert!(gumbel(&TokenNoise::new(seed, position), token).is_finite());
    }
}

#[test]
fn masked_tokens_are_never_chosen() {
    let logits = array![f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY];
    for position in 0..64 {
        assert_eq!(choose(logits.view(), &params(warm()), &NONE, position), 1);
    }
}

// Choices against the law. N draws, chi-square over V - 1 degrees of freedom. A right chooser exceeds the limit once in
// 10^6 seed ranges. For a chooser with law b the statistic's mean is about df + N sum (b - p)^2 / p and its variance twice
// (df + 2 N sum): the planted bias puts the limit more than 6 standard deviations below that mean, power > 1 - 1e-8.

const DRAWS: u64 = 20_000;
const LIMIT_7_DF: f64 = 40.53;
const LOGITS: [f64; 8] = [1.2, 0.1, -0.7, 0.9, 0.0, -1.5, 0.4, 0.6];

fn chi_square(p: &Array1<f64>, counts: &[u32]) -> f64 {
    let n: f64 = counts.iter().map(|&c| f64::from(c)).sum();
    p.iter().zip(counts).map(|(p, &c)| (f64::from(c) - n * p).powi(2) / (n * p)).sum()
}

fn counts(cells: usize, mut draw: impl FnMut(u64) -> usize) -> Vec<u32> {
    let mut counts = vec![0; cells];
    (0..DRAWS).for_each(|i| counts[draw(i)] += 1);
    counts
}

#[test]
fn choices_follow_the_law_over_seeds_and_over_positions_and_a_bias_is_caught() {
    let logits = Array1::from(LOGITS.to_vec());
    let at = |temperature, seed| params(SamplingOptions { temperature, seed, ..Default::default() });
    let p = law(logits.view(), &at(0.8, 0), &NONE);
    let over_seeds = counts(8, |i| choose(logits.view(), &at(0.8, i), &NONE, 77) as usize);
    let over_positions = counts(8, |i| choose(logits.view(), &at(0.8, 5), &NONE, i) as usize);
    for found in [over_seeds, over_positions] {
        assert!(chi_square(&p, &found) < LIMIT_7_DF, "{found:?}");
    }

    // The planted fault: temperature 1 instead of 0.8.
    let b = law(logits.view(), &at(1.0, 0), &NONE);
    let shift = DRAWS as f64 * p.iter().zip(&b).map(|(p, b)| (b - p).powi(2) / p).sum::<f64>();
    assert!((7.0 + shift - LIMIT_7_DF) / (2.0 * (7.0 + 2.0 * shift)).sqrt() > 6.0, "noncentrality {shift}");
    let biased = counts(8, |i| choose(logits.view(), &at(1.0, i), &NONE, 77) as usize);
    assert!(chi_square(&p, &biased) > LIMIT_7_DF, "{biased:?}");
}

/// The pair (choice at seed s, choice at seed s + 1) has the product law; so has (position, position + 1). Chi-square with
/// 63 degrees of freedom exceeds 131.4 once in 10^6 times. Perfectly dependent choices would reach N (V - 1).
#[test]
fn neighbouring_seeds_and_positions_choose_independently() {
    let logits = Array1::from(LOGITS.to_vec());
    let at = |seed| params(SamplingOptions { seed, ..warm() });
    let p = law(logits.view(), &at(0), &NONE);
    let product: Array1<f64> = p.iter().flat_map(|x| p.iter().map(move |y| x * y)).collect();
    let pick = |seed, position| choose(logits.view(), &at(seed), &NONE, position) as usize;
    let seeds = counts(64, |i| 8 * pick(2 * i, 3) + pick(2 * i + 1, 3));
    let positions = counts(64, |i| 8 * pick(3, 2 * i) + pick(3, 2 * i + 1));
    let shifted = counts(64, |i| 8 * pick(7, i + 1) + pick(8, i));
    for found in [seeds, positions, shifted] {
        assert!(chi_square(&product, &found) < 131.4, "{found:?}");
    }
    let copies = counts(64, |i| 8 * pick(i, 3) + pick(i, 3));
    assert!(chi_square(&product, &copies) > 131.4);
}

#[test]
fn the_noise_is_that_of_the_given_position() {
    let logits = array![0.0, 0.0, 0.0, 0.0];
    let four = params(SamplingOptions { seed: 11, ..warm() });
    for position in 0..32 {
        let noise = TokenNoise::new(11, position);
        let expected = (0..4).max_by(|&a, &b| noise.uniform(a).total_cmp(&noise.uniform(b))).unwrap_or(0);
        assert_eq!(choose(logits.view(), &four, &NONE, position), expected);
    }
}

/// Draft and target chosen with one noise: the target's token does not depend on the drafter, and both agree with
/// probability sum_x 1 / sum_y max(p_y/p_x, q_y/q_x) (Daliri et al., arXiv 2408.07978). 20 000 draws at about 0.7 have a
/// standard deviation of 0.0033; the limit is 6 of them, while independent noise would agree in about 0.2 of the draws.
#[test]
fn shared_noise_agrees_as_often_as_the_formula_says() {
    let (target, draft) = (Array1::from(LOGITS.to_vec()), array![0.8, 0.5, -0.7, 0.4, 0.2, -1.0, -0.2, 0.9]);
    let at = |seed| params(SamplingOptions { seed, ..warm() });
    let (p, q) = (law(target.view(), &at(0), &NONE), law(draft.view(), &at(0), &NONE));
    let share = |x: usize| 1.0 / (0..8).map(|y| (p[y] / p[x]).max(q[y] / q[x])).sum::<f64>();
    let expected: f64 = (0..8).map(share).sum();
    let agree = |other: u64| {
        let same = |i: &u64| choose(target.view(), &at(*i), &NONE, 5) == choose(draft.view(), &at(*i), &NONE, other);
        (0..DRAWS).filter(same).count() as f64 / DRAWS as f64
    };
    assert!((agree(5) - expected).abs() < 0.02, "{} instead of {expected}", agree(5));
    assert!((agree(6) - expected).abs() > 0.2);
}

/// A Markov model of 6 tokens, decoded plainly and in rounds; `history` carries the path, so penalties see drafted tokens.
struct Markov {
    logits: Vec<f64>,
    params: SamplingParams,
    prompt: Vec<u32>,
}

impl Markov {
    fn choose(&self, last: u32, answer: &[u32]) -> u32 {
        let row = &self.logits[6 * last as usize..][..6];
        let history = History { prompt: &self.prompt, answer };
        choose(row.into(), &self.params, &history, (self.prompt.len() + answer.len()) as u64)
    }

    /// `draft(root token, its position)`; a drafter of roots only is plain decoding.
    fn decode(&self, tokens: usize, draft: impl Fn(u32, u64) -> DraftTree) -> Vec<u32> {
        let mut answer: Vec<u32> = Vec::new();
        while answer.len() < tokens {
            let root = answer.last().copied().unwrap_or(self.prompt[self.prompt.len() - 1]);
            let tree = draft(root, (self.prompt.len() + answer.len() - 1) as u64);
            let path = |row: usize| tree.path(row)[1..].iter().map(|&r| tree.tokens()[r]).collect::<Vec<_>>();
            let sample = |row: usize| self.choose(tree.tokens()[row], &[answer.clone(), path(row)].concat());
            let samples: Vec<u32> = (0..tree.rows()).map(sample).collect();
            let acceptance = tree.follow(&samples);
            let accepted = acceptance.path.iter().map(|&row| tree.tokens()[row]);
            answer = answer.iter().copied().chain(accepted).chain([acceptance.next_token]).collect();
        }
        answer.truncate(tokens);
        answer
    }
}

proptest! {
    #![proptest_config(cases(64))]

    /// The emitted tokens are a function of target, options and seed: not of the drafter, even of one that shares the noise.
    #[test]
    fn the_emitted_tokens_do_not_depend_on_the_drafter(
        logits in prop::collection::vec(-3.0f64..3.0, 36), draft_logits in prop::collection::vec(-3.0f64..3.0, 36),
        prompt in prop::collection::vec(0u32..6, 1..4), temperature in prop_oneof![Just(0.0f32), Just(0.7), Just(1.5)],
        presence_penalty in prop_oneof![Just(0.0f32), Just(1.0)], top_k in 0usize..4, widths in prop::collection::vec(1usize..4, 1..4),
        seed: u64
    ) {
        let params = params(SamplingOptions { temperature, presence_penalty, top_k, seed, ..Default::default() });
        let model = Markov { logits, params, prompt };
        let grow = |root: u32, position: u64, shared: bool| {
            let mut edges: Vec<(usize, u32, f32)> = Vec::new();
            let mut level = vec![(0, root)];
            for (depth, &width) in (1..).zip(&widths) {
                let noise = TokenNoise::new(seed, position + depth);
                let parents = std::mem::take(&mut level);
                for (parent, token) in parents {
                    let score = |x: usize| draft_logits[6 * token as usize + x] + if shared { gumbel(&noise, x as u32) } else { 0.0 };
                    for &x in falling(&(0..6).map(score).collect()).iter().take(width) {
                        edges.push((parent, x as u32, 0.0));
                        level.push((edges.len(), x as u32));
                    }
                }
            }
            DraftTree::new(root, &edges).expect("parents come first and siblings differ")
        };
        let plain = model.decode(24, |root, _| DraftTree::root(root));
        prop_assert_eq!(&model.decode(24, |root, position| grow(root, position, true)), &plain);
        prop_assert_eq!(&model.decode(24, |root, position| grow(root, position, false)), &plain);
    }
}
