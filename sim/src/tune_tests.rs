//! Advice on curves whose optimum is known, ties, refusal, and the zero point.

use super::*;
use crate::{AcceptanceSpec, Staircase, SyntheticTrace};
use std::num::NonZeroUsize;

fn model(spec: &str) -> AcceptanceModel {
    match spec.parse().unwrap() {
        AcceptanceSpec::Model(model) => model,
        AcceptanceSpec::Trace(_) => panic!("{spec} is a law"),
    }
}

fn cost(seconds: impl Fn(usize) -> f64) -> CostModel {
    let points = (1..=33).map(|rows| (rows, seconds(rows))).collect();
    CostModel::from_table(Staircase { name: "test".into(), points, steps: None }).unwrap()
}

fn options(prompts: usize, rounds: usize, shapes: &[&str]) -> TuneOptions {
    let run =
        Run { prompts, rounds_per_prompt: rounds, context: 0, seed: 8, repetition: 0, threads: NonZeroUsize::new(2).unwrap() };
    TuneOptions { shapes: shapes.iter().map(|s| s.parse().unwrap()).collect(), ..TuneOptions::new(run) }
}

#[test]
fn the_curve_is_whole_and_its_best_is_the_closed_forms_best() {
    let law = model("constant:0.8");
    let cost = cost(|rows| 1.0 + 0.5 * ((rows - 1) / 8) as f64);
    let mut options = options(64, 1000, &["chain"]);
    options.max_depth = 32;
    let tuning = tune(Workload::Model(&law), &cost, &options).unwrap();
    assert_eq!(tuning.curve.len(), 31);
    assert_eq!(tuning.curve.iter().map(|p| p.budget).collect::<Vec<_>>(), Budget::all().collect::<Vec<_>>());
    let exact = |n: usize| law.tau(&crate::Shape::chain(n)) / cost.verify_s(n + 1).unwrap();
    let best = (3..=32).max_by(|&a, &b| exact(a).total_cmp(&exact(b))).unwrap();
    assert_eq!((best, tuning.curve[tuning.fastest].budget.nodes()), (7, 7));
    assert_eq!(tuning.curve[0].speedup_ci, Interval { low: 1.0, high: 1.0 });
    let json = serde_json::to_value(&tuning).unwrap();
    assert_eq!((json["curve"][30]["shape"].as_str(), json["curve"][30]["budget"].as_u64()), (Some("chain"), Some(32)));
    for p in &tuning.curve[1..] {
        assert!((p.tokens_per_s / exact(p.budget.nodes()) - 1.0).abs() < 0.03);
        assert!((p.break_even_tau - cost.verify_s(p.budget.rows()).unwrap()).abs() < 1e-9);
        assert!((p.speedup - p.tau / p.break_even_tau).abs() < 1e-9);
    }
}

#[test]
fn ties_go_to_the_smaller_budget() {
    // Beyond depth 3 nothing is accepted and nothing is charged: 3 to 32 are one configuration.
    let law = model("positions:0.9,0.8,0.7");
    let tuning = tune(Workload::Model(&law), &cost(|_| 1.0), &options(16, 200, &["chain"])).unwrap();
    assert_eq!(tuning.advised().budget.nodes(), 3);
    assert!(tuning.curve[1..].iter().all(|p| p.ties_with_best) && !tuning.curve[0].ties_with_best);
    // A gain of half a percent, without any noise, is within the tie share.
    let sure = model("positions:1,1,1");
    let flat = cost(|rows| if rows == 1 { 1.0 } else { 4.0 - 0.02 * rows as f64 / 33.0 });
    let mut long = options(16, 20, &["chain"]);
    long.shapes = vec![ShapeKind::Fixed(
        crate::Shape::new(&(0..32).map(|i| (i.min(3), if i < 3 { 0 } else { i })).collect::<Vec<_>>()).unwrap(),
    )];
    let tuning = tune(Workload::Model(&sure), &flat, &long).unwrap();
    assert_eq!((tuning.curve[tuning.fastest].budget.nodes(), tuning.advised().budget), (32, Budget::OFF));
}

#[test]
fn noisy_data_is_refused_with_the_missing_prompts() {
    let law = model("beta-prompt:0.7,2");
    let error = |prompts| tune(Workload::Model(&law), &cost(|_| 1.0), &options(prompts, 50, &["chain"])).unwrap_err();
    let SimError::TooNoisy { more, found_percent, .. } = error(8) else { panic!("8 wild prompts are noise") };
    assert!(found_percent > 5.0 && more > 8, "{more} {found_percent}");
    assert!(error(8).to_string().contains(&format!("(record about {more} more prompts")));
    assert!(matches!(error(1), SimError::TooNoisy { .. }));
    // The advice holds: with as many prompts as it asked for, give or take, the tuner answers.
    assert!(tune(Workload::Model(&law), &cost(|_| 1.0), &options(8 + 2 * more, 50, &["chain"])).is_ok());
}

#[test]
fn the_zero_point_is_where_drafting_only_loses() {
    let law = model("constant:0.4");
    let tuning =
        tune(Workload::Model(&law), &cost(|rows| 1.0 + 0.06 * (rows - 1) as f64), &options(64, 400, &["chain"])).unwrap();
    // tau goes to 1 / (1 - 0.4) = 1.667: V passes it between 12 and 13 rows.
    let zero = tuning.zero_point(&ShapeKind::Chain).unwrap().nodes();
    assert!((11..=13).contains(&zero), "{zero}");
    assert!(tuning.advised().budget.nodes() <= 4 && !tuning.advised().budget.is_off());
    let dear = tune(Workload::Model(&law), &cost(|rows| rows as f64), &options(64, 400, &["chain"])).unwrap();
    assert_eq!(dear.zero_point(&ShapeKind::Chain).unwrap().nodes(), 3);
    assert!(dear.advised().budget.is_off());
    let free = tune(Workload::Model(&law), &cost(|_| 1.0), &options(64, 400, &["chain"])).unwrap();
    assert_eq!(free.zero_point(&ShapeKind::Chain), None);
}

#[test]
fn trees_beat_chains_where_second_choices_hit() {
    let law = model("ranks:0.5/0.25/0.1/0.05,...");
    let tuning = tune(
        Workload::Model(&law),
        &cost(|_| 1.0),
        &options(16, 500, &["chain", "k-ary:2", "best-first", "frontier:4,4,16", "sequoia"]),
    )
    .unwrap();
    assert_eq!(tuning.curve.len(), 1 + 5 * 30);
    let tau = |shape: &str, n: usize| {
        let kind: ShapeKind = shape.parse().unwrap();
        tuning.curve.iter().find(|p| p.shape == kind && p.budget.nodes() == n).unwrap().tau
    };
    assert!(tau("best-first", 16) > 1.2 * tau("chain", 16));
    assert!((tau("best-first", 16) / tau("sequoia", 16) - 1.0).abs() < 0.03);
    assert_ne!(tuning.advised().shape, ShapeKind::Chain);
}

#[test]
fn a_trace_is_tuned_like_its_law() {
    let law = model("constant:0.7");
    let shape = ShapeKind::BestFirst.grow(&law, 32, 15).shape;
    let trace = SyntheticTrace { model: &law, shape: &shape, prompts: 12, tokens: 300, dense: false, seed: 6 }.draw().unwrap();
    let stairs = cost(|rows| 1.0 + 0.4 * ((rows - 1) / 8) as f64);
    let options = options(12, 0, &["best-first", "chain"]);
    let tuning = tune(Workload::Trace { trace: &trace, steps: DrafterSteps::Block }, &stairs, &options).unwrap();
    for p in &tuning.curve[1..] {
        let exact = law.tau(&p.shape.grow(&law, p.budget.nodes(), 15).shape);
        // A trace holds as long a chain as its tree is deep.
        let recorded = p.shape == ShapeKind::BestFirst || p.budget.nodes() <= shape.max_depth();
        assert!(!recorded || (p.tau - exact).abs() < 1e-4, "{} {}: {} {exact}", p.shape, p.budget, p.tau);
    }
}

#[test]
fn break_even_is_where_tau_equals_the_price() {
    // A chain of 3 nodes for 2 plain passes: 1 + a + a^2 + a^3 = 2 at a = 0.543689.
    let dear = cost(|rows| match rows {
        1 => 1.0,
        2..=4 => 2.0,
        _ => 1e9,
    });
    let alpha = break_even_alpha(&dear, &ShapeKind::Chain, 32, 0).unwrap().unwrap();
    assert!((alpha - 0.543_689_012_692).abs() < 1e-9, "{alpha}");
    assert_eq!(break_even_alpha(&cost(|rows| 1.5 * rows as f64 - 0.5), &ShapeKind::Chain, 32, 0).unwrap(), None);
}
