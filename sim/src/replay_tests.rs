//! A recorded tree restricted to a smaller budget is that budget's own simulation.

use super::*;
use crate::{AcceptanceModel, AcceptanceSpec, Grown, Shape, synthetic::SyntheticTrace};

fn model(spec: &str) -> AcceptanceModel {
    match spec.parse().unwrap() {
        AcceptanceSpec::Model(model) => model,
        AcceptanceSpec::Trace(_) => panic!("{spec} is a law"),
    }
}

const BUDGETS: [usize; 8] = [3, 4, 6, 8, 12, 16, 24, 32];

/// Laws whose rounds do not depend on where the rounds begin: the recording's roots are everybody's roots.
#[test]
fn a_trace_recorded_at_32_predicts_every_smaller_budget() {
    for (spec, kind) in [
        ("constant:0.8", ShapeKind::Chain),
        ("constant:0.7", ShapeKind::BestFirst),
        ("conditional:0.86,0.8,0.75,0.7,...", ShapeKind::BestFirst),
        ("ranks:0.7/0.15/0.05,0.6/0.2/0.1,0.5/0.2,...", ShapeKind::BestFirst),
        ("beta:0.75,6", ShapeKind::Chain),
    ] {
        let law = model(spec);
        let Grown { shape, .. } = kind.grow(&law, 32, 32);
        let trace =
            SyntheticTrace { model: &law, shape: &shape, prompts: 20, tokens: 1000, dense: false, seed: 5 }.draw().unwrap();
        let replay = Replay::new(&trace, &kind, 32).unwrap();
        for n in BUDGETS {
            let budget = Budget::new(n).unwrap();
            let exact = law.tau(&kind.grow(&law, n, 32).shape);
            let rounds: Vec<&ReplayRound> = replay.prompts().iter().flatten().collect();
            let count = rounds.len() as f64;
            // Counted path against the closed form: five standard errors.
            let counted = rounds.iter().map(|r| r.accepted(n) as f64 + 1.0).sum::<f64>() / count;
            let variance = rounds.iter().map(|r| (r.accepted(n) as f64 + 1.0 - counted).powi(2)).sum::<f64>() / count;
            assert!((counted - exact).abs() < 5.0 * (variance / count).sqrt(), "{spec} {n}: counted {counted}, exact {exact}");
            // Path products: no noise at all where every round has one law, less noise elsewhere.
            let spread = rounds.iter().map(|r| (r.tau(n) - exact).powi(2)).sum::<f64>() / count;
            assert!(
                (replay.tau(budget) - exact).abs() < 5.0 * (spread / count).sqrt() + 1e-6,
                "{spec} {n}: {}",
                replay.tau(budget)
            );
            assert!(spread <= variance);
        }
    }
}

/// Restricting the recorded tree equals drawing with the small tree: same text, same rounds where both start at a root.
#[test]
fn a_restricted_tree_equals_direct_simulation_on_the_same_text() {
    let law = model("markov:0.9,0.5,30,20");
    let kind = ShapeKind::BestFirst;
    let all = kind.grow(&law, 32, 15).shape;
    let draw =
        |shape: &Shape, dense| SyntheticTrace { model: &law, shape, prompts: 4, tokens: 500, dense, seed: 9 }.draw().unwrap();
    // A dense trace has the same positions whatever the tree, hence the same luck for both.
    let big = Replay::new(&draw(&all, true), &kind, 15).unwrap();
    for n in BUDGETS {
        let small = Replay::new(&draw(&all.prefix(n), true), &kind, 15).unwrap();
        let budget = Budget::new(n).unwrap();
        for (a, b) in big.prompts().iter().flatten().zip(small.prompts().iter().flatten()) {
            assert_eq!(a.accepted(n), b.accepted.len());
            assert!((a.tau(n) - b.tau(n)).abs() < 1e-12);
        }
        assert_eq!(big.walked_tau(budget), small.walked_tau(budget));
    }
}

/// Where difficulty comes in spans, budgets change where rounds begin. The walk over a dense trace knows; path products at
/// the roots of a budget-32 recording do not.
#[test]
fn a_dense_walk_is_right_where_spans_move_the_roots() {
    let law = model("markov:0.95,0.3,60,60");
    let kind = ShapeKind::Chain;
    let shape = kind.grow(&law, 32, 32).shape;
    let draw = |dense| SyntheticTrace { model: &law, shape: &shape, prompts: 24, tokens: 3000, dense, seed: 2 }.draw().unwrap();
    let dense = Replay::new(&draw(true), &kind, 32).unwrap();
    let sparse = Replay::new(&draw(false), &kind, 32).unwrap();
    let budget = Budget::new(3).unwrap();
    let exact = law.tau(&Shape::chain(3));
    let walked = dense.walked_tau(budget).unwrap();
    assert!((walked / exact - 1.0).abs() < 0.05, "{walked} {exact}");
    assert!(sparse.tau(budget) < 0.93 * exact, "{} {exact}", sparse.tau(budget));
    assert_eq!(sparse.walked_tau(budget), None);
}

#[test]
fn context_bands_share_out_the_rounds() {
    let law = model("constant:0.7");
    let shape = ShapeKind::BestFirst.grow(&law, 8, 15).shape;
    let trace = SyntheticTrace { model: &law, shape: &shape, prompts: 3, tokens: 200, dense: true, seed: 1 }.draw().unwrap();
    let replay = Replay::new(&trace, &ShapeKind::BestFirst, 15).unwrap();
    let count = |r: &Replay| r.prompts().iter().map(Vec::len).sum::<usize>();
    let (low, high) = (replay.in_context(0..50), replay.in_context(50..usize::MAX));
    assert_eq!((count(&replay), count(&low), count(&high)), (600, 150, 450));
    assert!(!low.is_dense() && replay.is_dense());
}

#[test]
fn budget_zero_is_one_token_per_pass() {
    let law = model("constant:0.7");
    let shape = ShapeKind::BestFirst.grow(&law, 32, 15).shape;
    let trace = SyntheticTrace { model: &law, shape: &shape, prompts: 2, tokens: 50, dense: true, seed: 1 }.draw().unwrap();
    let replay = Replay::new(&trace, &ShapeKind::BestFirst, 15).unwrap();
    assert_eq!((replay.tau(Budget::OFF), replay.walked_tau(Budget::OFF)), (1.0, Some(1.0)));
}

#[test]
fn greedy_replay_is_membership_and_shared_noise_counts_the_path_alone() {
    use crate::trace::{TraceHeader, TreeNoise};
    use specdec::SamplingParams;
    let law = model("constant:0.7");
    let shape = ShapeKind::BestFirst.grow(&law, 8, 15).shape;
    let trace = SyntheticTrace { model: &law, shape: &shape, prompts: 2, tokens: 80, dense: false, seed: 1 }.draw().unwrap();
    let shared = TraceHeader { tree_noise: TreeNoise::Shared, ..trace.header().clone() };
    let replay = Replay::new(&Trace::new(shared, trace.rounds().to_vec()).unwrap(), &ShapeKind::BestFirst, 15).unwrap();
    assert!(replay.prompts().iter().flatten().all(|r| (0..9).all(|n| r.tau(n) == r.accepted(n) as f64 + 1.0)));

    // At temperature 0 the target's first choice decides, whatever its probability.
    let mut rounds = trace.rounds().to_vec();
    rounds.iter_mut().for_each(|r| {
        r.accepted.clear();
        let mut at = 0;
        while let Some(i) = r.nodes.iter().position(|n| n.parent == at && n.target_rank == 0) {
            at = i + 1;
            r.accepted.push(at);
        }
    });
    let greedy = TraceHeader { sampling: SamplingParams::greedy(), ..trace.header().clone() };
    let replay = Replay::new(&Trace::new(greedy, rounds).unwrap(), &ShapeKind::BestFirst, 15).unwrap();
    assert!(replay.prompts().iter().flatten().all(|r| (0..9).all(|n| r.tau(n) == r.accepted(n) as f64 + 1.0)));
    assert!(replay.tau(Budget::new(8).unwrap()) > 2.0);
}

#[test]
fn shapes_that_were_not_recorded_are_refused() {
    let law = model("constant:0.7");
    let shape = Shape::chain(4);
    let trace = SyntheticTrace { model: &law, shape: &shape, prompts: 1, tokens: 9, dense: false, seed: 1 }.draw().unwrap();
    let error = Replay::new(&trace, &ShapeKind::KAry(2), 9).unwrap_err().to_string();
    assert!(error.contains("use best-first or chain"), "{error}");
}
