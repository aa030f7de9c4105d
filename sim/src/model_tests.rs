//! Closed forms to 1e-12, and sampled rounds against them.

use super::*;
use crate::{
    randomness::stream,
    sampler::{Sampler, Walk},
};
use proptest::prelude::*;

fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-12, "{a} {b}");
}

/// Leviathan et al., arXiv 2211.17192, equation 1.
#[test]
fn a_chain_of_constant_rate_is_geometric() {
    for alpha in [0.0, 0.3, 0.8, 0.99] {
        for nodes in [0, 1, 3, 15, 32] {
            let exact = (1.0 - f64::powi(alpha, nodes + 1)) / (1.0 - alpha);
            close(AcceptanceModel::constant(alpha).unwrap().tau(&Shape::chain(nodes as usize)), exact);
        }
    }
    close(AcceptanceModel::constant(1.0).unwrap().tau(&Shape::chain(7)), 8.0);
}

/// k independent tries per level cover c = 1 - (1 - alpha)^k; a full tree is a chain of rate c.
#[test]
fn a_full_tree_of_independent_tries_is_a_chain_of_its_coverage() {
    for (k, depth, nodes) in [(2usize, 3, 14), (3, 2, 12), (4, 1, 4), (2, 4, 30)] {
        for alpha in [0.1, 0.5, 0.9] {
            let c = 1.0 - f64::powi(1.0 - alpha, k as i32);
            let exact = (1.0 - c.powi(depth + 1)) / (1.0 - c);
            close(AcceptanceModel::constant(alpha).unwrap().tau(&Shape::k_ary(k, nodes)), exact);
        }
    }
}

#[test]
fn shares_of_positions_come_back_as_survival() {
    let shares = [0.863, 0.675, 0.571];
    let model = AcceptanceModel::from_survival(&shares, false).unwrap();
    let survival = model.survival(&Shape::chain(5));
    (0..3).for_each(|d| close(survival[d], shares[d]));
    assert_eq!(survival[3..], [0.0, 0.0]);
}

/// E[alpha^k] of a Beta law, k = 1, 2 by hand: m and m (m c + 1) / (c + 1).
#[test]
fn beta_difficulty_has_its_moments() {
    let (m, c) = (0.7, 5.0);
    let model = AcceptanceModel::new(Law::Beta { mean: m, concentration: c, scope: Scope::Round }).unwrap();
    close(model.tau(&Shape::chain(2)), 1.0 + m + m * (m * c + 1.0) / (c + 1.0));
    // Two children of the root: E[alpha + alpha (1 - alpha)].
    let second = m * (m * c + 1.0) / (c + 1.0);
    close(model.tau(&Shape::k_ary(2, 2)), 1.0 + 2.0 * m - second);
}

#[test]
fn equal_regimes_are_a_constant_rate_and_spans_do_not_matter_then() {
    let model = AcceptanceModel::new(Law::Markov { alpha: [0.8, 0.8], leave: [0.1, 0.3] }).unwrap();
    let constant = AcceptanceModel::constant(0.8).unwrap();
    for shape in [Shape::chain(9), Shape::k_ary(3, 20)] {
        close(model.tau(&shape), constant.tau(&shape));
    }
}

/// Long spans: rounds see one regime, and more rounds begin in the hard one: tau is the harmonic mean over tokens.
#[test]
fn long_spans_give_the_harmonic_mean_of_the_regimes() {
    let model = AcceptanceModel::new(Law::Markov { alpha: [0.9, 0.4], leave: [1e-7, 1e-7] }).unwrap();
    let shape = Shape::chain(8);
    let tau = |a| AcceptanceModel::constant(a).unwrap().tau(&shape);
    let harmonic = 2.0 / (1.0 / tau(0.9) + 1.0 / tau(0.4));
    assert!((model.tau(&shape) - harmonic).abs() < 1e-4, "{} {harmonic}", model.tau(&shape));
}

fn any_model() -> impl Strategy<Value = AcceptanceModel> {
    let p = 0.05f64..0.95;
    prop_oneof![
        p.clone().prop_map(|alpha| Law::Constant { alpha }),
        prop::collection::vec(p.clone(), 1..6).prop_map(|conditional| Law::Positions { conditional, repeats: true }),
        prop::collection::vec((p.clone(), p.clone()), 1..6).prop_map(|rows| Law::DepthRank {
            rates: rows.into_iter().map(|(a, b)| vec![a, (1.0 - a) * b]).collect(),
            repeats: false
        }),
        (p.clone(), p.clone(), 0.02f64..1.0, 0.02f64..1.0).prop_map(|(a, b, c, d)| Law::Markov { alpha: [a, b], leave: [c, d] }),
        (p, 0.5f64..50.0).prop_map(|(mean, concentration)| Law::Beta { mean, concentration, scope: Scope::Round }),
    ]
    .prop_map(|law| AcceptanceModel::new(law).expect("rates are in range"))
}

fn any_shape() -> impl Strategy<Value = Shape> {
    prop::collection::vec((0usize..1000, 0usize..3), 1..24).prop_map(|raw| {
        let mut drafted: Vec<(usize, usize)> = Vec::new();
        for (pick, rank) in raw {
            let entry = (pick % (drafted.len() + 1), rank);
            if !drafted.contains(&entry) {
                drafted.push(entry);
            }
        }
        Shape::new(&drafted).expect("parents come first")
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// 20 000 rounds; five standard errors, widened by 1.5 for the correlation of neighbouring rounds (spans up to 50).
    #[test]
    fn sampled_rounds_have_the_exact_tau(model in any_model(), shape in any_shape()) {
        let walk = Walk::new(&model, &shape);
        let mut sampler = Sampler::new(&model, &walk, stream(11, 0, 0));
        let (mut path, mut sum, mut square) = (vec![], 0.0, 0.0);
        let rounds = 20_000;
        for _ in 0..rounds {
            sampler.round(&mut path);
            let connected = path.iter().scan(0, |above, &row| Some(shape.parent(row) == std::mem::replace(above, row))).all(|ok| ok);
            prop_assert!(connected);
            sampler.commit(path.len());
            let tokens = path.len() as f64 + 1.0;
            sum += tokens;
            square += tokens * tokens;
        }
        let n = f64::from(rounds);
        let mean = sum / n;
        let error = ((square / n - mean * mean) / n).sqrt();
        let wide = if matches!(model.law(), Law::Markov { .. }) { 5.0 } else { 1.0 };
        prop_assert!((mean - model.tau(&shape)).abs() <= 5.0 * wide * error + 1e-9, "{} {} ± {}", mean, model.tau(&shape), error);
    }

    #[test]
    fn survival_falls_and_sums_to_tau(model in any_model(), shape in any_shape()) {
        let survival = model.survival(&shape);
        prop_assert!(survival.windows(2).all(|w| w[1] <= w[0] + 1e-12));
        prop_assert!((1.0 + survival.iter().sum::<f64>() - model.tau(&shape)).abs() < 1e-12);
        prop_assert!(survival.iter().all(|p| (-1e-12..=1.0 + 1e-12).contains(p)));
    }
}
