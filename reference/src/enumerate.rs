//! The law of what a rule emits, summed over every draft and every accept/reject outcome: no sampling, no tolerance but the
//! number type's. The model is a Markov table, small enough to list all sequences. Does not know which laws are expected.

use crate::number::{Number, normalised, without};
use crate::rules::{Drafted, Rule};
use specdec::DraftTree;
use std::collections::BTreeMap;

/// Probability of every emitted sequence: accepted drafts and the token after them. Impossible ones are left out.
pub type Law<N> = BTreeMap<Vec<u32>, N>;

/// Markov laws of target and drafter: `p[last]`, `q[last]` are the laws of the next token, \[V\]\[V\] each.
#[derive(Clone, Debug)]
pub struct Tables<N> {
    /// The target.
    pub p: Vec<Vec<N>>,
    /// The drafter.
    pub q: Vec<Vec<N>>,
}

impl<N: Number> Tables<N> {
    /// Laws from whole-number weights. `None` if a row has only zeros.
    pub fn new(p_weights: &[Vec<u32>], q_weights: &[Vec<u32>]) -> Option<Self> {
        let laws = |weights: &[Vec<u32>]| -> Option<Vec<Vec<N>>> {
            weights.iter().map(|row| normalised(row.iter().map(|&w| N::whole(w)).collect())).collect()
        };
        Some(Self { p: laws(p_weights)?, q: laws(q_weights)? })
    }
}

/// What is drafted under the last token.
#[derive(Clone, Debug, PartialEq)]
pub enum Drafts {
    /// Always this tree.
    Fixed(DraftTree),
    /// `widths[d]` ordered children for every node of depth `d`, drawn from q without replacement (fewer where q has
    /// fewer tokens). All widths 1: an autoregressive chain.
    Random(Vec<usize>),
}

impl Drafts {
    /// Whether every draft is a single path.
    pub fn is_chain(&self) -> bool {
        match self {
            Self::Fixed(tree) => tree.max_depth() == tree.drafted(),
            Self::Random(widths) => widths.iter().all(|&w| w == 1),
        }
    }

    /// Depth of the deepest draft; a round emits at most one token more.
    pub fn depth(&self) -> usize {
        match self {
            Self::Fixed(tree) => tree.max_depth(),
            Self::Random(widths) => widths.len(),
        }
    }
}

/// The exact law of one round's emitted tokens after `last`.
pub fn emitted<N: Number>(rule: Rule, tables: &Tables<N>, last: u32, drafts: &Drafts) -> Law<N> {
    match drafts {
        Drafts::Fixed(tree) => on_tree(rule, tables, &under(last, tree)),
        Drafts::Random(widths) if rule.is_a_walk() => walked(rule, tables, last, widths),
        Drafts::Random(widths) => over_trees(rule, tables, last, widths),
    }
}

/// The law of `rounds` rounds' tokens, each round starting from the last emitted token.
pub fn emitted_in_rounds<N: Number>(rule: Rule, tables: &Tables<N>, last: u32, drafts: &Drafts, rounds: usize) -> Law<N> {
    let mut law = Law::from([(vec![], N::one())]);
    for _ in 0..rounds {
        let mut longer = Law::new();
        for (sequence, reach) in &law {
            for (tail, x) in emitted(rule, tables, *sequence.last().unwrap_or(&last), drafts) {
                add(&mut longer, [sequence.clone(), tail].concat(), reach.clone() * x);
            }
        }
        law = longer;
    }
    law
}

/// Plain sampling of `length` tokens from p.
pub fn ancestral<N: Number>(tables: &Tables<N>, last: u32, length: usize) -> Law<N> {
    complete(&Law::from([(vec![], N::one())]), tables, last, length)
}

/// Every sequence extended to `length` tokens by plain sampling from p, longer ones cut: equal to [`ancestral`] exactly
/// when the law is lossless.
pub fn complete<N: Number>(law: &Law<N>, tables: &Tables<N>, last: u32, length: usize) -> Law<N> {
    let mut open: Vec<(Vec<u32>, N)> = law.iter().map(|(s, x)| (s.clone(), x.clone())).collect();
    let mut done = Law::new();
    while let Some((mut sequence, reach)) = open.pop() {
        if sequence.len() >= length {
            sequence.truncate(length);
            add(&mut done, sequence, reach);
            continue;
        }
        let p = &tables.p[*sequence.last().unwrap_or(&last) as usize];
        for (next, x) in (0..).zip(p).filter(|(_, x)| !x.is_zero()) {
            open.push(([&sequence[..], &[next]].concat(), reach.clone() * x.clone()));
        }
    }
    done
}

/// The largest absolute difference between two laws.
pub fn distance<N: Number>(a: &Law<N>, b: &Law<N>) -> N {
    let at = |law: &Law<N>, sequence: &Vec<u32>| law.get(sequence).cloned().unwrap_or_else(N::zero);
    let gaps = a.keys().chain(b.keys()).map(|s| {
        let (x, y) = (at(a, s), at(b, s));
        if x > y { x - y } else { y - x }
    });
    // A NaN is not comparable even with itself; once seen, it stays.
    gaps.fold(N::zero(), |largest, gap| if gap > largest || gap.partial_cmp(&gap).is_none() { gap } else { largest })
}

/// Mean tokens of a round, the token after the path included: tau.
pub fn expected_tokens<N: Number>(law: &Law<N>) -> N {
    law.iter().fold(N::zero(), |total, (s, x)| total + N::whole(s.len() as u32) * x.clone())
}

/// All ordered draws of `width` tokens from q without replacement, with their probabilities.
pub(crate) fn draws<N: Number>(q: &[N], width: usize) -> Vec<(Vec<usize>, N)> {
    let mut complete = Vec::new();
    let mut open = vec![(vec![], N::one(), q.to_vec())];
    while let Some((tokens, reach, d)) = open.pop() {
        if tokens.len() == width || d.iter().all(N::is_zero) {
            complete.push((tokens, reach));
            continue;
        }
        for x in (0..d.len()).filter(|&x| !d[x].is_zero()) {
            let drawn = [&tokens[..], &[x]].concat();
            let reach = reach.clone() * d[x].clone();
            // The last draw leaves no law to draw from; not making it halves the time of chains.
            let rest = if drawn.len() < width { normalised(without(&d, x)) } else { None };
            open.push((drawn, reach, rest.unwrap_or_default()));
        }
    }
    complete
}

/// All trees of [`Drafts::Random`] with their probabilities.
pub(crate) fn all_trees<N: Number>(tables: &Tables<N>, last: u32, widths: &[usize]) -> Vec<(DraftTree, N)> {
    let mut complete = Vec::new();
    let mut open = vec![(DraftTree::root(last), 0, N::one())];
    while let Some((tree, row, reach)) = open.pop() {
        if row == tree.rows() {
            complete.push((tree, reach));
            continue;
        }
        let width = widths.get(tree.depths()[row]).copied().unwrap_or(0);
        for (children, x) in draws(&tables.q[tree.tokens()[row] as usize], width) {
            open.push((with_children(&tree, row, &children), row + 1, reach.clone() * x));
        }
    }
    complete
}

fn over_trees<N: Number>(rule: Rule, tables: &Tables<N>, last: u32, widths: &[usize]) -> Law<N> {
    let mut law = Law::new();
    for (tree, reach) in all_trees(tables, last, widths) {
        for (sequence, x) in on_tree(rule, tables, &tree) {
            add(&mut law, sequence, reach.clone() * x);
        }
    }
    law
}

/// Nodes draw their children independently, so a walk may be averaged row by row instead of tree by tree.
fn walked<N: Number>(rule: Rule, tables: &Tables<N>, last: u32, widths: &[usize]) -> Law<N> {
    let mut law = Law::new();
    let mut open = Law::from([(vec![], N::one())]);
    for depth in 0..=widths.len() {
        let mut entered = Law::new();
        for (sequence, reach) in open {
            let row = *sequence.last().unwrap_or(&last) as usize;
            for (children, x) in draws(&tables.q[row], widths.get(depth).copied().unwrap_or(0)) {
                let step = rule.step(&tables.p[row], &tables.q[row], &children);
                let here = reach.clone() * x;
                for (&child, enter) in children.iter().zip(step.enter) {
                    add(&mut entered, [&sequence[..], &[child as u32]].concat(), here.clone() * enter);
                }
                for (next, y) in (0..).zip(step.next) {
                    add(&mut law, [&sequence[..], &[next]].concat(), here.clone() * step.stop.clone() * y);
                }
            }
        }
        open = entered;
    }
    law
}

fn on_tree<N: Number>(rule: Rule, tables: &Tables<N>, tree: &DraftTree) -> Law<N> {
    let mut law = Law::new();
    for decision in rule.decide(&Drafted::new(tree.clone(), &tables.p, &tables.q)) {
        let path: Vec<u32> = tree.path(decision.row)[1..].iter().map(|&row| tree.tokens()[row]).collect();
        for (next, x) in (0..).zip(decision.next) {
            add(&mut law, [&path[..], &[next]].concat(), decision.probability.clone() * x);
        }
    }
    law
}

fn add<N: Number>(law: &mut Law<N>, sequence: Vec<u32>, x: N) {
    if !x.is_zero() {
        let total = law.entry(sequence).or_insert_with(N::zero);
        *total = total.clone() + x;
    }
}

fn edges(tree: &DraftTree) -> Vec<(usize, u32, f32)> {
    (1..tree.rows()).filter_map(|row| Some((tree.parents()[row]?, tree.tokens()[row], tree.log_probs()[row]))).collect()
}

fn with_children(tree: &DraftTree, row: usize, children: &[usize]) -> DraftTree {
    let added = children.iter().map(|&x| (row, x as u32, 0.0));
    DraftTree::new(tree.tokens()[0], &edges(tree).into_iter().chain(added).collect::<Vec<_>>())
        .expect("children drawn without replacement differ")
}

/// The same tree under another last token.
fn under(last: u32, tree: &DraftTree) -> DraftTree {
    DraftTree::new(last, &edges(tree)).expect("the edges of a valid tree")
}

#[cfg(test)]
#[path = "enumerate_tests.rs"]
mod tests;
