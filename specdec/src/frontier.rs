//! A draft tree grown best-first in batches, by a drafter that scores the children of a node only when asked (Weaver).
//! Both engines and the simulator run this very code. Knows scores only; nothing of the drafter behind them.

use crate::DraftTree;
use std::cmp::Ordering;

/// How a tree is grown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowPlan {
    /// Drafted nodes to keep, root excluded.
    pub budget: usize,
    /// Nodes expanded together in one drafter step.
    pub expand_per_round: usize,
    /// Children offered by one expansion; more are cut off.
    pub expand_width: usize,
    /// Deepest drafted row.
    pub max_depth: usize,
    /// Drafter steps at most.
    pub max_rounds: usize,
}

/// A node whose children are wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct FrontierEntry {
    /// Slot to pass to [`Frontier::insert`]; the root is slot 0.
    pub slot: usize,
    /// Slot of the parent; `None` for the root.
    pub parent: Option<usize>,
    /// The node's token.
    pub token: u32,
    /// Distance from the root.
    pub depth: usize,
}

/// All nodes known so far. The best `budget` of them by cumulative log-probability will be kept; a node is expanded only
/// while its children could still be among those, so growth ends with the exact best-first tree unless rounds run out.
#[derive(Clone, Debug)]
pub struct Frontier {
    plan: GrowPlan,
    nodes: Vec<Node>,
    rounds: usize,
}

#[derive(Clone, Debug)]
struct Node {
    parent: Option<usize>,
    token: u32,
    depth: usize,
    log_prob: f32,
    total: f64,
    expanded: bool,
}

impl Frontier {
    /// Starts with the root alone.
    pub fn new(root: u32, plan: GrowPlan) -> Self {
        let node = Node { parent: None, token: root, depth: 0, log_prob: 0.0, total: 0.0, expanded: false };
        Self { plan, nodes: vec![node], rounds: 0 }
    }

    /// The next nodes to expand, best first, at most `expand_per_round`; empty when no expansion can change the result.
    pub fn next_batch(&mut self) -> Vec<FrontierEntry> {
        if self.rounds == self.plan.max_rounds || self.plan.budget == 0 {
            return vec![];
        }
        let kept = self.kept();
        let worst = (kept.len() == self.plan.budget).then(|| self.nodes[kept[kept.len() - 1]].total);
        let batch: Vec<usize> = std::iter::once(0)
            .chain(kept)
            .filter(|&slot| {
                let node = &self.nodes[slot];
                !node.expanded && node.depth < self.plan.max_depth && worst.is_none_or(|w| node.total > w)
            })
            .take(self.plan.expand_per_round)
            .collect();
        self.rounds += usize::from(!batch.is_empty());
        for &slot in &batch {
            self.nodes[slot].expanded = true;
        }
        batch.into_iter().map(|slot| self.entry(slot)).collect()
    }

    /// Adds the children of an expanded node: distinct tokens with the log-probability of their edge, best first.
    /// Positive values, which rounding of a log-softmax can give, count as 0; NaN counts as impossible and is dropped.
    pub fn insert(&mut self, slot: usize, children: &[(u32, f32)]) {
        for &(token, log_prob) in children.iter().filter(|c| !c.1.is_nan()).take(self.plan.expand_width) {
            let (log_prob, parent) = (log_prob.min(0.0), &self.nodes[slot]);
            let (depth, total) = (parent.depth + 1, parent.total + f64::from(log_prob));
            self.nodes.push(Node { parent: Some(slot), token, depth, log_prob, total, expanded: false });
        }
    }

    /// Drafter steps taken so far.
    pub fn rounds(&self) -> usize {
        self.rounds
    }

    /// The tree of the best `budget` nodes, best first. Slots become rows in that order.
    pub fn finish(self) -> DraftTree {
        let mut row_of_slot = vec![0; self.nodes.len()];
        let mut drafted = Vec::new();
        for slot in self.kept() {
            let node = &self.nodes[slot];
            drafted.push((node.parent.map_or(0, |p| row_of_slot[p]), node.token, node.log_prob));
            row_of_slot[slot] = drafted.len();
        }
        DraftTree::new(self.nodes[0].token, &drafted).expect("a kept node's parent ranks before it and siblings differ")
    }

    /// Slots of the best `budget` nodes, best first; a parent always ranks before its children.
    fn kept(&self) -> Vec<usize> {
        let mut slots: Vec<usize> = (1..self.nodes.len()).filter(|&s| self.nodes[s].total > f64::NEG_INFINITY).collect();
        slots.sort_by(|&a, &b| self.rank(a, b));
        slots.truncate(self.plan.budget);
        slots
    }

    /// Falling total; ties to the shallower, then to the earlier inserted.
    fn rank(&self, a: usize, b: usize) -> Ordering {
        let (x, y) = (&self.nodes[a], &self.nodes[b]);
        y.total.total_cmp(&x.total).then(x.depth.cmp(&y.depth)).then(a.cmp(&b))
    }

    fn entry(&self, slot: usize) -> FrontierEntry {
        let node = &self.nodes[slot];
        FrontierEntry { slot, parent: node.parent, token: node.token, depth: node.depth }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Children of a node as a fixed function of its path: four tokens with log-probabilities that fall by rank.
    fn children(entry: &FrontierEntry) -> Vec<(u32, f32)> {
        (0..4).map(|rank| (entry.token * 4 + rank + 1, -0.3 - 0.7 * rank as f32 - 0.01 * entry.depth as f32)).collect()
    }

    fn grow(plan: GrowPlan) -> DraftTree {
        let mut frontier = Frontier::new(0, plan);
        loop {
            let batch = frontier.next_batch();
            if batch.is_empty() {
                return frontier.finish();
            }
            for entry in batch {
                let offered = children(&entry);
                frontier.insert(entry.slot, &offered);
            }
        }
    }

    fn totals(tree: &DraftTree) -> Vec<f64> {
        (1..tree.rows()).map(|r| tree.path(r).iter().map(|&n| f64::from(tree.log_probs()[n])).sum()).collect()
    }

    #[test]
    fn batching_changes_the_work_and_not_the_tree() {
        for budget in [1, 3, 8, 16, 32] {
            let one = grow(GrowPlan { budget, expand_per_round: 1, expand_width: 4, max_depth: 15, max_rounds: usize::MAX });
            for expand_per_round in [2, 4, 8] {
                let plan = GrowPlan { budget, expand_per_round, expand_width: 4, max_depth: 15, max_rounds: usize::MAX };
                assert_eq!(totals(&grow(plan)), totals(&one), "budget {budget}, batch {expand_per_round}");
            }
            assert_eq!(one.drafted(), budget);
        }
    }

    #[test]
    fn limits_hold() {
        let tree = grow(GrowPlan { budget: 32, expand_per_round: 4, expand_width: 2, max_depth: 3, max_rounds: 100 });
        assert_eq!((tree.max_depth(), tree.drafted()), (3, 2 + 4 + 8));
        assert!((0..tree.rows()).all(|r| tree.children(r).count() <= 2));
        let tree = grow(GrowPlan { budget: 32, expand_per_round: 1, expand_width: 4, max_depth: 15, max_rounds: 2 });
        assert_eq!(tree.drafted(), 8);
        let none = grow(GrowPlan { budget: 0, expand_per_round: 1, expand_width: 4, max_depth: 15, max_rounds: 2 });
        assert_eq!(none.drafted(), 0);
    }

    #[test]
    fn rounding_above_zero_does_not_lose_a_child() {
        let plan = GrowPlan { budget: 2, expand_per_round: 1, expand_width: 4, max_depth: 2, max_rounds: 9 };
        let mut frontier = Frontier::new(0, plan);
        let root = frontier.next_batch()[0].slot;
        frontier.insert(root, &[(1, 1e-7), (2, f32::NAN)]);
        let slot = frontier.next_batch()[0].slot;
        frontier.insert(slot, &[(3, 1e-7)]);
        assert_eq!(frontier.finish(), DraftTree::chain(0, &[(1, 0.0), (3, 0.0)]).unwrap());
    }
}
