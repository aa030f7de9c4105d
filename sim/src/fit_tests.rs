//! Fits recover the law that made the trace, and the wrong law is seen to be wrong.

use super::*;
use crate::{AcceptanceSpec, ShapeKind, SyntheticTrace};

fn model(spec: &str) -> AcceptanceModel {
    match spec.parse().unwrap() {
        AcceptanceSpec::Model(model) => model,
        AcceptanceSpec::Trace(_) => panic!("{spec} is a law"),
    }
}

fn trace(spec: &str, kind: &ShapeKind, prompts: usize, tokens: usize, dense: bool) -> Trace {
    let law = model(spec);
    let shape = kind.grow(&law, 12, 12).shape;
    SyntheticTrace { model: &law, shape: &shape, prompts, tokens, dense, seed: 21 }.draw().unwrap()
}

fn near(found: f64, expected: f64, within: f64) {
    assert!((found - expected).abs() <= within, "{found}, expected {expected} ± {within}");
}

/// Tolerances are four standard errors of the estimate at these sizes.
#[test]
fn a_constant_rate_is_recovered_from_chains_and_trees() {
    for kind in [ShapeKind::Chain, ShapeKind::BestFirst, ShapeKind::KAry(3)] {
        let fit = fit_model(&trace("constant:0.7", &kind, 20, 1000, false), Family::Constant).unwrap();
        let Law::Constant { alpha } = *fit.model.law() else { panic!("{fit:?}") };
        near(alpha, 0.7, 4.0 * (0.7f64 * 0.3 / 20_000.0).sqrt());
        assert!(fit.goodness.p_value.unwrap() > 1e-4, "{fit:?}");
        near(fit.model_tau, fit.counted_tau, 0.05);
    }
}

#[test]
fn positions_and_ranks_are_recovered() {
    let fit = fit_model(&trace("conditional:0.9,0.8,0.6", &ShapeKind::Chain, 20, 1000, false), Family::Positions).unwrap();
    let Law::Positions { conditional, .. } = fit.model.law() else { panic!("{fit:?}") };
    [0.9, 0.8, 0.6].iter().zip(conditional).for_each(|(e, f)| near(*f, *e, 0.04));
    near(fit.model_tau, fit.counted_tau, 1e-9);
    assert_eq!(fit.goodness.p_value, None);

    let ranks = "ranks:0.6/0.2/0.1,0.5/0.3,0.4/0.1";
    let fit = fit_model(&trace(ranks, &ShapeKind::BestFirst, 20, 2000, false), Family::DepthRank).unwrap();
    let Law::DepthRank { rates, .. } = fit.model.law() else { panic!("{fit:?}") };
    near(rates[0][0], 0.6, 0.02);
    near(rates[0][1], 0.2, 0.02);
    near(rates[0][2], 0.1, 0.02);
    near(rates[1][1], 0.3, 0.03);
}

#[test]
fn beta_difficulty_is_recovered_in_both_scopes() {
    for (spec, family, tolerance) in [("beta:0.75,4", Family::BetaRound, 1.0), ("beta-prompt:0.75,10", Family::BetaPrompt, 5.0)] {
        let fit = fit_model(&trace(spec, &ShapeKind::Chain, 100, 400, false), family).unwrap();
        let Law::Beta { mean, concentration, .. } = *fit.model.law() else { panic!("{fit:?}") };
        near(mean, 0.75, 0.06);
        near(concentration, if family == Family::BetaRound { 4.0 } else { 10.0 }, tolerance);
    }
}

#[test]
fn regimes_are_recovered_from_visited_and_from_dense_roots() {
    for dense in [false, true] {
        let fit = fit_model(&trace("markov:0.92,0.4,40,25", &ShapeKind::Chain, 24, 2000, dense), Family::Markov).unwrap();
        let Law::Markov { alpha, leave } = *fit.model.law() else { panic!("{fit:?}") };
        near(alpha[0], 0.92, 0.02);
        near(alpha[1], 0.40, 0.05);
        near(1.0 / leave[0], 40.0, 10.0);
        near(1.0 / leave[1], 25.0, 7.0);
        near(fit.model_tau, fit.counted_tau, 0.2);
    }
}

/// A test of fit that accepts everything is decoration.
#[test]
fn the_true_family_wins_and_the_wrong_one_is_rejected() {
    for (spec, family) in [
        ("constant:0.7", Family::Constant),
        ("beta:0.7,2", Family::BetaRound),
        ("markov:0.95,0.3,40,40", Family::Markov),
        ("beta-prompt:0.7,6", Family::BetaPrompt),
    ] {
        let fits = fit_all(&trace(spec, &ShapeKind::Chain, 60, 500, false)).unwrap();
        assert_eq!(fits[0].family, family, "{spec}: {:?}", fits.iter().map(|f| (f.family, f.aic)).collect::<Vec<_>>());
        let constant = fits.iter().find(|f| f.family == Family::Constant).unwrap();
        let p = constant.goodness.p_value.unwrap();
        assert_eq!(p > 1e-3, family == Family::Constant, "{spec}: p = {p}");
    }
}

#[test]
fn plain_rounds_cannot_be_fitted() {
    let law = model("constant:0.7");
    let shape = Shape::root();
    let plain = SyntheticTrace { model: &law, shape: &shape, prompts: 2, tokens: 10, dense: false, seed: 1 }.draw().unwrap();
    assert!(fit_model(&plain, Family::Constant).unwrap_err().to_string().contains("plain rounds only"));
}
