//! Rounds per second of the simulator on one core, by law of acceptance and policy; trees of 16 and 32 nodes.
//! The goal is 1e6 rounds per second and core (criterion prints elements per second).

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sim::{AcceptanceSpec, CostModel, Policy, Run, ShapeKind, Source, Staircase, simulate};
use specdec::Budget;
use std::{hint::black_box, num::NonZeroUsize};

const ROUNDS: usize = 20_000;

fn rounds(c: &mut Criterion) {
    let points = (1..=33).map(|rows: usize| (rows, 0.03 + 0.012 * (rows.div_ceil(8) - 1) as f64)).collect();
    let cost = CostModel::from_table(Staircase { name: "stairs".into(), points, steps: None }).expect("rows rise");
    let run = Run { prompts: 4, rounds_per_prompt: ROUNDS / 4, context: 0, seed: 1, repetition: 0, threads: NonZeroUsize::MIN };
    let mut group = c.benchmark_group("rounds");
    group.throughput(Throughput::Elements(ROUNDS as u64));
    for spec in ["constant:0.8", "conditional:0.86,0.8,0.75,...", "ranks:0.7/0.15/0.05,...", "markov:0.9,0.5,30,20", "beta:0.8,5"]
    {
        let AcceptanceSpec::Model(model) = spec.parse().expect("the spec is fine") else { continue };
        for (kind, name) in [(ShapeKind::Chain, "chain"), (ShapeKind::BestFirst, "tree")] {
            for budget in [16, 32] {
                let policy = Policy::Fixed(Budget::new(budget).expect("in range"));
                let source = Source::Model { model: &model, kind: &kind, max_depth: 15 };
                group.bench_function(format!("{spec} {name} {budget}"), |b| {
                    b.iter(|| simulate(black_box(source), &cost, &policy, &run).expect("costs are measured"))
                });
            }
        }
    }
    let AcceptanceSpec::Model(model) = "markov:0.9,0.5,30,20".parse().expect("the spec is fine") else { return };
    let source = Source::Model { model: &model, kind: &ShapeKind::Chain, max_depth: 15 };
    group.bench_function("markov chain 32 cost-aware", |b| {
        b.iter(|| simulate(black_box(source), &cost, &Policy::CostAware, &run).expect("costs are measured"))
    });
    group.finish();
}

criterion_group!(benches, rounds);
criterion_main!(benches);
