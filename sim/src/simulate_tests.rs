//! Simulated figures against closed forms; determinism; policies on staircases; budget 0.

use super::*;
use crate::{AcceptanceSpec, Memory, Shape, Staircase, SyntheticTrace};
use specdec::{BudgetTable, RawTable};

fn model(spec: &str) -> AcceptanceModel {
    match spec.parse().unwrap() {
        AcceptanceSpec::Model(model) => model,
        AcceptanceSpec::Trace(_) => panic!("{spec} is a law"),
    }
}

/// V(n) of an M5-like staircase: flat to 8 rows, then a step per 8.
fn stairs() -> CostModel {
    let points = (1..=40).map(|rows: usize| (rows, 0.03 + 0.012 * (rows.div_ceil(8) - 1) as f64)).collect();
    CostModel::from_table(Staircase { name: "stairs".into(), points, steps: None }).unwrap()
}

fn run(threads: usize) -> Run {
    Run {
        prompts: 32,
        rounds_per_prompt: 500,
        context: 100,
        seed: 4,
        repetition: 0,
        threads: NonZeroUsize::new(threads).unwrap(),
    }
}

fn fixed(n: usize) -> Policy {
    Policy::Fixed(Budget::new(n).unwrap())
}

#[test]
fn tau_and_speed_match_the_closed_form() {
    let (law, kind, cost) = (model("constant:0.8"), ShapeKind::BestFirst, stairs());
    for n in [0, 3, 8, 16, 32] {
        let source = Source::Model { model: &law, kind: &kind, max_depth: 15 };
        let got = simulate(source, &cost, &fixed(n), &run(1)).unwrap();
        let shape = kind.grow(&law, n, 15).shape;
        let exact = law.tau(&shape);
        let wide = |i: Option<Interval>| {
            let i = i.unwrap();
            Interval { low: i.low - i.half_width(), high: i.high + i.half_width() }
        };
        assert!(n == 0 || wide(got.tau_ci).contains(exact), "{n}: {got:?} {exact}");
        assert!(n == 0 || wide(got.tokens_per_s_ci).contains(exact / cost.verify_s(n + 1).unwrap()));
        assert!((got.accepted_per_pass - (got.tau - 1.0)).abs() < 1e-12 && got.drafted_per_pass == n as f64);
        assert_eq!((got.rounds, got.switches), (16_000.0, 0.0));
    }
}

#[test]
fn threads_and_shards_change_nothing() {
    for spec in ["constant:0.8", "markov:0.9,0.5,30,20", "beta-prompt:0.8,5"] {
        let (law, kind, cost) = (model(spec), ShapeKind::Chain, stairs());
        let source = Source::Model { model: &law, kind: &kind, max_depth: 32 };
        for policy in
            [fixed(8), Policy::CostAware, Policy::Bandit { arms: vec![Budget::OFF, Budget::new(8).unwrap()], exploration: 0.3 }]
        {
            let one = simulate(source, &cost, &policy, &run(1)).unwrap();
            for threads in [2, 3, 64] {
                assert_eq!(simulate(source, &cost, &policy, &run(threads)).unwrap(), one);
            }
        }
        let other = simulate(source, &cost, &fixed(8), &Run { repetition: 1, ..run(1) }).unwrap();
        assert_ne!(other.tau, simulate(source, &cost, &fixed(8), &run(1)).unwrap().tau);
    }
}

#[test]
fn budget_zero_is_the_plain_path_to_the_last_bit() {
    let (law, kind) = (model("constant:0.8"), ShapeKind::Chain);
    let mut cost = stairs();
    cost.draft.pass_s = 0.5;
    cost.round_s = 0.25;
    cost.switch_s = 0.125;
    let source = Source::Model { model: &law, kind: &kind, max_depth: 32 };
    let got = simulate(source, &cost, &fixed(0), &Run { prompts: 1, ..run(1) }).unwrap();
    let plain = (0..500).map(|_| cost.verify_s(1).unwrap()).fold(0.0, |a, b| a + b);
    assert_eq!((got.tau, got.by_prompt[0].seconds, got.tau_ci), (1.0, plain, None));
}

/// 9 and 17 rows open a new stair; the nodes behind pay for it only together. The marginal rule stops at 7 nodes.
#[test]
fn cost_aware_choice_does_not_halt_before_a_flat_step() {
    let law = model("constant:0.92");
    let shape = Shape::chain(32);
    let cost = stairs();
    let prices: Vec<Price> = (0..=32).map(|n| cost.price(n, n).unwrap()).collect();
    let seen = law.path_probabilities(&shape);
    let view = View { seen: &seen, prices: &prices, context: 0, outcome: &[] };
    let decide = |policy: &Policy| Decider::new(policy, 0.0).decide(&view);
    assert_eq!(decide(&Policy::MarginalStop), 7);
    let rate = |n: usize| law.tau(&Shape::chain(n)) / prices[n].fixed_s;
    let best = (0..=32).filter(|&n| Budget::new(n).is_ok()).max_by(|&a, &b| rate(a).total_cmp(&rate(b))).unwrap();
    assert_eq!(decide(&Policy::CostAware), best);
    assert!(best == 15 && rate(15) > rate(7));
}

#[test]
fn every_policy_may_switch_drafting_off_where_it_only_costs() {
    let (law, kind) = (model("constant:0.05"), ShapeKind::Chain);
    let mut cost = stairs();
    cost.round_s = 0.02;
    let source = Source::Model { model: &law, kind: &kind, max_depth: 32 };
    let plain = simulate(source, &cost, &fixed(0), &run(2)).unwrap().tokens_per_s;
    let memory = Memory { weight: 0.2, start: 2.0, probe_every: 64 };
    let sixteen = Budget::new(16).unwrap();
    let policies = [
        Policy::EmaThreshold { tiers: vec![(0.8, Budget::new(3).unwrap()), (2.0, sixteen)], memory },
        Policy::ConfidenceStop { threshold: 0.3, most: sixteen },
        Policy::Bandit { arms: vec![Budget::OFF, Budget::new(3).unwrap(), sixteen], exploration: 0.02 },
        Policy::Table(
            BudgetTable::new(RawTable {
                context_edges: vec![4096],
                accepted_edges: vec![1.0],
                budgets: vec![vec![Budget::OFF, sixteen], vec![Budget::OFF, Budget::new(3).unwrap()]],
                newest: memory.weight,
                start: memory.start,
                probe_every: memory.probe_every,
            })
            .unwrap(),
        ),
        Policy::CostAware,
        Policy::MarginalStop,
        Policy::Oracle,
    ];
    for policy in policies {
        let policy = policy.checked().unwrap();
        let got = simulate(source, &cost, &policy, &run(2)).unwrap();
        assert!(got.tokens_per_s > 0.93 * plain, "{policy:?}: {} of {plain}", got.tokens_per_s);
        let still = simulate(source, &cost, &fixed(16), &run(2)).unwrap();
        assert!(got.tokens_per_s > 1.2 * still.tokens_per_s);
    }
}

/// Easy and hard spans: adapting beats every fixed budget, and nobody beats the oracle.
#[test]
fn adapting_gains_and_the_oracle_bounds_it() {
    let (law, kind) = (model("markov:0.95,0.3,120,80"), ShapeKind::Chain);
    let cost = stairs();
    let source = Source::Model { model: &law, kind: &kind, max_depth: 32 };
    let speed = |policy: &Policy| simulate(source, &cost, policy, &run(2)).unwrap().tokens_per_s;
    let best_fixed = Budget::all().map(|b| speed(&Policy::Fixed(b))).fold(0.0, f64::max);
    let (aware, oracle) = (speed(&Policy::CostAware), speed(&Policy::Oracle));
    assert!(aware > 1.01 * best_fixed, "{aware} {best_fixed}");
    assert!(oracle > aware);
}

#[test]
fn switching_costs_are_counted() {
    let (law, kind) = (model("markov:0.95,0.1,40,40"), ShapeKind::Chain);
    let mut cost = stairs();
    let source = Source::Model { model: &law, kind: &kind, max_depth: 32 };
    let policy = Policy::ConfidenceStop { threshold: 0.5, most: Budget::new(15).unwrap() };
    let free = simulate(source, &cost, &policy, &run(1)).unwrap();
    cost.switch_s = 0.05;
    let paid = simulate(source, &cost, &policy, &run(1)).unwrap();
    let seconds = |o: &Outcome| o.by_prompt.iter().map(|p| p.seconds).sum::<f64>();
    assert!(free.switches > 100.0 && free.switches == paid.switches);
    assert!((seconds(&paid) - seconds(&free) - 0.05 * paid.switches).abs() < 1e-6);
}

#[test]
fn a_trace_and_its_law_give_the_same_figures() {
    let (law, kind, cost) = (model("constant:0.75"), ShapeKind::BestFirst, stairs());
    let shape = kind.grow(&law, 32, 15).shape;
    let trace = SyntheticTrace { model: &law, shape: &shape, prompts: 8, tokens: 400, dense: false, seed: 3 }.draw().unwrap();
    let replay = Replay::new(&trace, &kind, 15).unwrap();
    let source = Source::Trace { replay: &replay, steps: DrafterSteps::Block };
    for n in [0, 3, 8, 16, 32] {
        let got = simulate(source, &cost, &fixed(n), &run(1)).unwrap();
        assert!((got.tau - law.tau(&kind.grow(&law, n, 15).shape)).abs() < 1e-5, "{n}: {}", got.tau);
    }
    let aware = simulate(source, &cost, &Policy::CostAware, &run(1)).unwrap();
    let oracle = simulate(source, &cost, &Policy::Oracle, &run(1)).unwrap();
    assert!(oracle.tokens_per_s > aware.tokens_per_s);
}

#[test]
fn what_was_not_measured_is_refused() {
    let (law, kind) = (model("constant:0.8"), ShapeKind::Chain);
    let cost = CostModel::from_table(Staircase { name: "short".into(), points: vec![(1, 1.0), (9, 1.2)], steps: None }).unwrap();
    let source = Source::Model { model: &law, kind: &kind, max_depth: 32 };
    assert!(simulate(source, &cost, &fixed(8), &run(1)).is_ok());
    assert!(matches!(simulate(source, &cost, &fixed(9), &run(1)), Err(SimError::Unmeasured { rows: 10, .. })));
    assert!(simulate(source, &cost, &fixed(8), &Run { prompts: 0, ..run(1) }).is_err());
}

/// A 95 % interval covers the truth in 95 of 100 repetitions; 200 repetitions allow 88 to 99 % with five standard errors.
/// Rounds taken for independent would cover far less: that arm must fail the same bound.
#[test]
fn intervals_clustered_by_prompt_cover_the_truth() {
    let (law, kind, cost) = (model("beta-prompt:0.7,8"), ShapeKind::Chain, stairs());
    let exact = law.tau(&Shape::chain(8));
    let source = Source::Model { model: &law, kind: &kind, max_depth: 32 };
    let (mut clustered, mut naive) = (0, 0);
    for repetition in 0..200 {
        let got = simulate(source, &cost, &fixed(8), &Run { prompts: 40, rounds_per_prompt: 60, repetition, ..run(1) }).unwrap();
        clustered += u32::from(got.tau_ci.unwrap().contains(exact));
        // Tokens of a round spread by less than 3; independent rounds would have this standard error at most.
        naive += u32::from((got.tau - exact).abs() < 1.96 * 3.0 / got.rounds.sqrt());
    }
    assert!((176..=198).contains(&clustered), "{clustered} of 200");
    assert!(naive < 176, "{naive} of 200");
}

#[test]
fn drafter_steps_are_priced_by_drafter() {
    let batches = DrafterSteps::Batches(NonZeroUsize::new(4).unwrap());
    assert_eq!([DrafterSteps::Block, DrafterSteps::PerNode, batches].map(|s| s.of(9)), [0, 9, 3]);
}
