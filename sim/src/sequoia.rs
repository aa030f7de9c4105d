//! The tree of exactly `nodes` drafted rows with the largest expected accepted length, by dynamic programme over depth, rank
//! and size (Sequoia, arXiv 2402.12374, section 3.1, with the depth index), and the same by enumeration as a check.
//! Knows only average rates per depth and rank.

use crate::{AcceptanceModel, Shape};

/// Optimal tree of at most `nodes` drafted rows and at most `max_depth` levels. Rows are ordered by falling path probability.
pub fn sequoia(model: &AcceptanceModel, nodes: usize, max_depth: usize) -> Shape {
    let table = Table::new(model, nodes, max_depth);
    let mut drafted = Vec::new();
    table.unfold_forest(0, 0, nodes, 0, &mut drafted);
    by_path_probability(model, &drafted)
}

/// `tree[d][n]`: best `1 + sum of path products` of a subtree of `n` rows whose top is at depth `d`.
/// `forest[d][k][n]`: best sum over children of ranks `k..` below a row at depth `d`, `n` rows in all.
struct Table {
    rate: Vec<Vec<f64>>,
    tree: Vec<Vec<f64>>,
    forest: Vec<Vec<Vec<f64>>>,
}

impl Table {
    fn new(model: &AcceptanceModel, nodes: usize, max_depth: usize) -> Self {
        let depths = max_depth.min(nodes);
        let rate: Vec<Vec<f64>> =
            (1..=depths).map(|d| (0..nodes.min(model.ranks(d))).map(|r| model.rate(d, r)).collect()).collect();
        let mut tree = vec![vec![0.0; nodes + 1]; depths + 1];
        let mut forest = vec![vec![vec![0.0; nodes + 1]; nodes + 2]; depths + 1];
        for d in (0..=depths).rev() {
            let ranks = rate.get(d).map_or(0, Vec::len);
            for k in (0..ranks).rev() {
                for n in 1..=nodes {
                    let skip = forest[d][k + 1][n];
                    let with = |j: usize| rate[d][k] * tree[d + 1][j] + forest[d][k + 1][n - j];
                    forest[d][k][n] = (1..=n).map(with).fold(skip, f64::max);
                }
            }
            for n in 1..=nodes {
                tree[d][n] = 1.0 + forest[d][0][n - 1];
            }
        }
        Self { rate, tree, forest }
    }

    /// Re-walks the maxima; `drafted` collects (parent row, rank).
    fn unfold_forest(&self, d: usize, k: usize, n: usize, parent: usize, drafted: &mut Vec<(usize, usize)>) {
        let value = self.forest[d][k][n];
        if n == 0 || value == 0.0 {
            return;
        }
        if value == self.forest[d][k + 1][n] {
            return self.unfold_forest(d, k + 1, n, parent, drafted);
        }
        let j = (1..=n)
            .find(|&j| value == self.rate[d][k] * self.tree[d + 1][j] + self.forest[d][k + 1][n - j])
            .expect("the maximum was taken over the same sums");
        drafted.push((parent, k));
        let row = drafted.len();
        self.unfold_forest(d + 1, 0, j - 1, row, drafted);
        self.unfold_forest(d, k + 1, n - j, parent, drafted);
    }
}

fn by_path_probability(model: &AcceptanceModel, drafted: &[(usize, usize)]) -> Shape {
    let mut product = vec![1.0];
    let mut depth = vec![0];
    for &(parent, rank) in drafted {
        depth.push(depth[parent] + 1);
        product.push(product[parent] * model.rate(depth[parent] + 1, rank));
    }
    let mut order: Vec<usize> = (1..=drafted.len()).collect();
    order.sort_by(|&a, &b| product[b].total_cmp(&product[a]).then(depth[a].cmp(&depth[b])).then(a.cmp(&b)));
    let mut new_row = vec![0; drafted.len() + 1];
    let mut shape = Shape::root();
    for old in order {
        let (parent, rank) = drafted[old - 1];
        shape.push(new_row[parent], rank);
        new_row[old] = shape.drafted();
    }
    shape
}

/// The largest `1 + sum of path products` over every tree of `nodes` rows with ranks without gaps (Catalan many): a check
/// for small sizes.
pub fn best_tau_by_enumeration(model: &AcceptanceModel, nodes: usize, max_depth: usize) -> f64 {
    fn forest(model: &AcceptanceModel, depth: usize, rank: usize, nodes: usize, max_depth: usize) -> Vec<f64> {
        if nodes == 0 {
            return vec![0.0];
        }
        if depth > max_depth {
            return vec![];
        }
        let mut sums = Vec::new();
        for below in 0..nodes {
            let rest = forest(model, depth, rank + 1, nodes - 1 - below, max_depth);
            for first in forest(model, depth + 1, 0, below, max_depth) {
                sums.extend(rest.iter().map(|r| model.rate(depth, rank) * (1.0 + first) + r));
            }
        }
        sums
    }
    1.0 + forest(model, 1, 0, nodes, max_depth).into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Law;
    use proptest::prelude::*;

    fn falling_rates() -> impl Strategy<Value = AcceptanceModel> {
        prop::collection::vec(prop::collection::vec(0.01f64..1.0, 1..5), 1..5).prop_map(|raw| {
            let rates = raw
                .into_iter()
                .map(|mut row| {
                    row.sort_by(|a, b| b.total_cmp(a));
                    let total = row.iter().sum::<f64>().max(1.0);
                    row.iter().map(|a| a / total).collect()
                })
                .collect();
            AcceptanceModel::new(Law::DepthRank { rates, repeats: true }).expect("rates sum to at most 1")
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_enumerated_tree_beats_the_programme(model in falling_rates(), nodes in 1usize..8, max_depth in 1usize..6) {
            let shape = sequoia(&model, nodes, max_depth);
            prop_assert!(shape.drafted() <= nodes && shape.max_depth() <= max_depth);
            let (dp, all) = (model.tau(&shape), best_tau_by_enumeration(&model, nodes, max_depth));
            prop_assert!((dp - all).abs() < 1e-12 || (dp > all && shape.drafted() < nodes), "{} {}", dp, all);
        }

        #[test]
        fn a_larger_budget_never_lands_fewer_tokens(model in falling_rates(), nodes in 1usize..32) {
            let tau = |n| model.tau(&sequoia(&model, n, 16));
            prop_assert!(tau(nodes + 1) >= tau(nodes) - 1e-12);
        }
    }

    #[test]
    fn enumeration_counts_catalan_many_trees() {
        // Rate 1 for every rank would be no law; the sum of equal rates counts nodes at depth 1 and shows the loop is full.
        let model = AcceptanceModel::new(Law::DepthRank { rates: vec![vec![0.2; 5]], repeats: false }).unwrap();
        assert!((best_tau_by_enumeration(&model, 5, 9) - 2.0).abs() < 1e-12);
    }
}
