//! How a tree of a given budget is grown from a law of acceptance: chain, k-ary, best-first over marginals, batched frontier,
//! Sequoia's optimum, or a shape the user fixed. Best-first and frontier run specdec's code, the same that the engine runs.
//! Reports the drafter steps a growth takes; knows no cost.

use crate::{AcceptanceModel, Shape, SimError, sequoia::sequoia};
use serde::{Serialize, Serializer};
use specdec::{DraftTree, Frontier, GrowPlan};
use std::{fmt, str::FromStr};

/// A family of tree shapes, one for each budget.
#[derive(Clone, Debug, PartialEq)]
pub enum ShapeKind {
    /// A path. An autoregressive drafter (MTP) takes one step per node, a block drafter none beyond its pass.
    Chain,
    /// The complete tree of this arity in level order.
    KAry(usize),
    /// DDTree: the most probable nodes under marginals of a block drafter.
    BestFirst,
    /// Weaver: the frontier is expanded in batches; every batch is one drafter step.
    Frontier {
        /// Nodes expanded together.
        expand_per_round: usize,
        /// Children of an expansion.
        expand_width: usize,
        /// Steps at most.
        max_rounds: usize,
    },
    /// The optimal tree for average rates.
    Sequoia,
    /// Prefixes of one given shape.
    Fixed(Shape),
}

/// A grown tree and what growing it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Grown {
    /// Rows in growth order.
    pub shape: Shape,
    /// Sequential drafter steps: nodes of a chain or k-ary tree level by level, expansion batches of a frontier, 0 for shapes
    /// that one block pass can fill.
    pub steps: usize,
}

impl ShapeKind {
    /// Grows the tree of at most `nodes` drafted rows, at most `max_depth` deep. Rates below `1e-7` are not drafted.
    pub fn grow(&self, model: &AcceptanceModel, nodes: usize, max_depth: usize) -> Grown {
        let depth = max_depth.min(nodes);
        let (shape, steps) = match self {
            Self::Chain => (Shape::chain(depth), depth),
            Self::KAry(k) => levels(Shape::k_ary(*k, nodes), max_depth),
            Self::Fixed(shape) => levels(shape.prefix(nodes), max_depth),
            Self::Sequoia => (sequoia(model, nodes, max_depth), 0),
            Self::BestFirst => {
                let marginals: Vec<_> = (1..=depth).map(|d| candidates(model, d, nodes)).collect();
                let tree = DraftTree::best_first(ROOT, nodes, &marginals).expect("candidates are sorted and distinct");
                (Shape::from_tree(&tree), 0)
            }
            Self::Frontier { expand_per_round, expand_width, max_rounds } => {
                let plan = GrowPlan {
                    budget: nodes,
                    expand_per_round: *expand_per_round,
                    expand_width: *expand_width,
                    max_depth,
                    max_rounds: *max_rounds,
                };
                let mut frontier = Frontier::new(ROOT, plan);
                loop {
                    let batch = frontier.next_batch();
                    if batch.is_empty() {
                        break;
                    }
                    for entry in batch {
                        frontier.insert(entry.slot, &candidates(model, entry.depth + 1, *expand_width));
                    }
                }
                let steps = frontier.rounds();
                (Shape::from_tree(&frontier.finish()), steps)
            }
        };
        Grown { shape, steps }
    }
}

/// Token of the root in rank-coded trees; children carry their rank as token.
const ROOT: u32 = 0;

/// Rates below this are noise of a measured table and underflow a path quickly.
const LEAST_RATE: f64 = 1e-7;

/// Ranks of one depth as (rank, log rate), best first.
fn candidates(model: &AcceptanceModel, depth: usize, most: usize) -> Vec<(u32, f32)> {
    let mut candidates: Vec<(u32, f32)> = (0..most.min(model.ranks(depth)))
        .map(|rank| (rank, model.rate(depth, rank)))
        .filter(|c| c.1 >= LEAST_RATE)
        .map(|(rank, rate)| (rank as u32, rate.ln().min(0.0) as f32))
        .collect();
    candidates.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    candidates
}

/// Cuts a shape at a depth; a tree drafted level by level takes one step per level.
fn levels(shape: Shape, max_depth: usize) -> (Shape, usize) {
    let mut cut = Shape::root();
    let mut new_row = vec![0; shape.rows()];
    for row in 1..shape.rows() {
        if shape.depth(row) <= max_depth {
            cut.push(new_row[shape.parent(row)], shape.rank(row));
            new_row[row] = cut.drafted();
        }
    }
    let steps = cut.max_depth();
    (cut, steps)
}

impl fmt::Display for ShapeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain => f.write_str("chain"),
            Self::KAry(k) => write!(f, "k-ary:{k}"),
            Self::BestFirst => f.write_str("best-first"),
            Self::Frontier { expand_per_round, expand_width, max_rounds } => {
                write!(f, "frontier:{expand_per_round},{expand_width},{max_rounds}")
            }
            Self::Sequoia => f.write_str("sequoia"),
            Self::Fixed(shape) => write!(f, "fixed:{}", shape.drafted()),
        }
    }
}

impl Serialize for ShapeKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for ShapeKind {
    type Err = SimError;
    fn from_str(text: &str) -> Result<Self, SimError> {
        let error = |reason: &str| SimError::Spec {
            what: "tree shape",
            text: text.into(),
            reason: format!("{reason} (write chain, k-ary:K, best-first, sequoia, or frontier:EXPAND,WIDTH,ROUNDS)"),
        };
        let (name, rest) = text.split_once(':').map_or((text, None), |(n, r)| (n, Some(r)));
        let numbers: Option<Vec<usize>> = rest.map_or(Some(vec![]), |r| r.split(',').map(|n| n.trim().parse().ok()).collect());
        let numbers = numbers.ok_or_else(|| error("expected whole numbers after the colon"))?;
        if numbers.contains(&0) {
            return Err(error("0 is no size"));
        }
        match (name, numbers[..].as_ref()) {
            ("chain", []) => Ok(Self::Chain),
            ("k-ary", &[k]) => Ok(Self::KAry(k)),
            ("best-first", []) => Ok(Self::BestFirst),
            ("sequoia", []) => Ok(Self::Sequoia),
            ("frontier", &[expand_per_round, expand_width, max_rounds]) => {
                Ok(Self::Frontier { expand_per_round, expand_width, max_rounds })
            }
            _ => Err(error("unknown shape or wrong count of numbers")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Law;

    fn measured() -> AcceptanceModel {
        let rates = (0..15).map(|d| vec![0.7 - 0.02 * d as f64, 0.1, 0.05, 0.02]).collect();
        AcceptanceModel::new(Law::DepthRank { rates, repeats: false }).unwrap()
    }

    /// f32 log-probabilities decide near-ties, so equality holds to their precision.
    #[test]
    fn best_first_reaches_the_optimum_of_factorised_rates() {
        for model in [measured(), AcceptanceModel::constant(0.8).unwrap()] {
            for nodes in [1, 3, 8, 16, 32] {
                let grown = ShapeKind::BestFirst.grow(&model, nodes, 15).shape;
                let best = model.tau(&ShapeKind::Sequoia.grow(&model, nodes, 15).shape);
                assert!((model.tau(&grown) - best).abs() < 1e-6, "{nodes}: {} {best}", model.tau(&grown));
            }
        }
    }

    #[test]
    fn a_frontier_with_enough_rounds_is_best_first_and_counts_its_steps() {
        let model = measured();
        let enough = ShapeKind::Frontier { expand_per_round: 4, expand_width: 4, max_rounds: 64 }.grow(&model, 16, 15);
        let best = ShapeKind::BestFirst.grow(&model, 16, 15);
        assert!((model.tau(&enough.shape) - model.tau(&best.shape)).abs() < 1e-6);
        let short = ShapeKind::Frontier { expand_per_round: 4, expand_width: 4, max_rounds: 3 }.grow(&model, 16, 15);
        assert_eq!(short.steps, 3);
        assert!(enough.steps > 3 && model.tau(&short.shape) < model.tau(&enough.shape));
    }

    #[test]
    fn smaller_best_first_trees_are_prefixes() {
        let model = measured();
        let all = ShapeKind::BestFirst.grow(&model, 32, 15).shape;
        for nodes in 0..32 {
            assert_eq!(ShapeKind::BestFirst.grow(&model, nodes, 15).shape, all.prefix(nodes));
        }
    }

    #[test]
    fn a_chain_takes_a_step_per_node_and_depth_limits_hold() {
        let model = measured();
        assert_eq!(ShapeKind::Chain.grow(&model, 8, 15).steps, 8);
        for kind in ["chain", "k-ary:3", "best-first", "sequoia", "frontier:4,4,16"] {
            let kind: ShapeKind = kind.parse().unwrap();
            assert!(kind.grow(&model, 32, 4).shape.max_depth() <= 4, "{kind}");
            assert_eq!(kind.grow(&model, 0, 4), Grown { shape: Shape::root(), steps: 0 }, "{kind}");
            assert_eq!(kind.to_string().parse::<ShapeKind>().unwrap(), kind);
        }
        let error = "bush".parse::<ShapeKind>().unwrap_err().to_string();
        assert!(error.contains("write chain, k-ary:K"), "{error}");
    }
}
