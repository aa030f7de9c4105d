//! The sampler against its written order: filters by enumeration over small vocabularies, penalties by hand.

use super::*;
use proptest::prelude::*;
use specdec::SamplingOptions;

fn sampler(options: SamplingOptions, vocab: usize) -> Sampler {
    Sampler::new(SamplingParams::new(options).unwrap(), vocab)
}

fn kept(options: SamplingOptions, logits: &[f32]) -> Vec<u32> {
    let pool = Pool::new(1);
    let mut sampler = sampler(options, logits.len());
    sampler.values = logits.iter().map(|x| x * sampler.inverse_temperature).collect();
    sampler.keep(&pool);
    sampler.candidates.iter().map(|c| c.0).collect()
}

/// The law's support as `SamplingOptions` words it, in f64.
fn kept_in_f64(o: &SamplingOptions, logits: &[f32]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if o.top_k > 0 {
        order.truncate(o.top_k);
    }
    let mass = |i: usize| (f64::from(logits[i]) / f64::from(o.temperature)).exp();
    let total: f64 = order.iter().map(|&i| mass(i)).sum();
    let mut sum = 0.0;
    let enough = order.iter().position(|&i| {
        sum += mass(i) / total;
        sum >= f64::from(o.top_p)
    });
    if let (Some(last), true) = (enough, o.top_p < 1.0) {
        order.truncate(last + 1);
    }
    let floor = f64::from(o.min_p) * mass(order[0]);
    order.into_iter().filter(|&i| mass(i) >= floor).map(|i| i as u32).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn filters_keep_what_their_definition_keeps(
        ranks in prop::collection::vec(0u32..40, 2..30), top_k in 0usize..12, top_p in 0.05f32..1.0, min_p in 0.0f32..0.3,
        temperature in 0.3f32..2.0
    ) {
        // Steps of 0.37 keep sums away from thresholds except on purpose; equal logits occur.
        let logits: Vec<f32> = ranks.iter().map(|&r| r as f32 * 0.37 - 5.0).collect();
        let options = SamplingOptions { temperature, top_k, top_p, min_p, ..Default::default() };
        prop_assert_eq!(kept(options, &logits), kept_in_f64(&options, &logits));
    }

    #[test]
    fn the_choice_is_the_largest_perturbed_value_of_the_law(
        logits in prop::collection::vec(-4.0f32..4.0, 1..70), seed in any::<u64>(), position in 0u64..1 << 40, top_k in 0usize..9
    ) {
        let pool = Pool::new(1);
        let options = SamplingOptions { temperature: 0.9, top_k, seed, ..Default::default() };
        let mut sampler = sampler(options, logits.len());
        let history = History::new(&[0], logits.len());
        let chosen = sampler.choose(&pool, &logits, &history, position);
        let noise = TokenNoise::new(seed, position);
        let score = |id: u32| {
            let u = f64::from(noise.uniform(id));
            f64::from(logits[id as usize]) / 0.9 - (-u.ln()).ln()
        };
        let law = kept_in_f64(&options, &logits);
        let best = law.iter().map(|&id| score(id)).fold(f64::NEG_INFINITY, f64::max);
        prop_assert!(law.contains(&chosen.id));
        prop_assert!(score(chosen.id) > best - 1e-5, "{} {}", score(chosen.id), best);
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let log_prob = f64::from(logits[chosen.id as usize]) - total.ln();
        prop_assert!((f64::from(chosen.log_prob) - log_prob).abs() < 1e-5);
    }
}

#[test]
fn penalties_apply_in_their_stated_order() {
    let options = SamplingOptions {
        temperature: 1.0,
        repetition_penalty: 2.0,
        presence_penalty: 1.0,
        frequency_penalty: 0.5,
        ..Default::default()
    };
    let mut sampler = sampler(options, 4);
    let mut history = History::new(&[0, 2], 4);
    for token in [1, 1, 2] {
        history.push(token);
    }
    sampler.values = vec![3.0, 4.0, -2.0, 1.0];
    sampler.penalise(&history);
    // 0: prompt only, 3 / 2. 1: 4 / 2 - 1 - 2 * 0.5. 2: -2 * 2 - 1 - 1 * 0.5. 3: never seen.
    assert_eq!(sampler.values, [1.5, 0.0, -5.5, 1.0]);
}

#[test]
fn greedy_ties_go_to_the_lowest_id_and_filters_change_nothing() {
    let pool = Pool::new(1);
    let history = History::new(&[0], 5);
    let options = SamplingOptions { top_k: 3, top_p: 0.2, min_p: 0.9, ..Default::default() };
    assert_eq!(sampler(options, 5).choose(&pool, &[0.0, 7.0, 7.0, -1.0, 7.0], &history, 9).id, 1);
}

#[test]
fn one_candidate_and_tiny_temperatures_are_greedy() {
    let pool = Pool::new(1);
    let history = History::new(&[0], 6);
    let logits = [0.5, -1.0, 2.5, 2.4, -9.0, 0.0];
    for options in [
        SamplingOptions { temperature: 1.0, top_k: 1, ..Default::default() },
        SamplingOptions { temperature: 1e-30, ..Default::default() },
        SamplingOptions { temperature: 1e-42, ..Default::default() },
        SamplingOptions { temperature: 1.0, top_p: 1e-6, ..Default::default() },
        SamplingOptions { temperature: 1.0, min_p: 1.0, ..Default::default() },
    ] {
        for position in 0..50 {
            assert_eq!(sampler(options, 6).choose(&pool, &logits, &history, position).id, 2, "{options:?}");
        }
    }
}

#[test]
fn wide_nuclei_reach_beyond_the_first_candidates() {
    let logits = vec![0.0; 3000];
    let options = SamplingOptions { temperature: 1.0, top_p: 0.9, ..Default::default() };
    let kept = kept(options, &logits).len();
    assert!((2699..=2702).contains(&kept), "{kept} of 3000 equal tokens hold 0.9 of the mass");
}
