//! What an acceptance rule is: it reads a drafted tree with the target's and the drafter's laws at every row and decides
//! where the accepted path ends and by which law the next token is drawn. A rule here returns the probability of every
//! decision instead of drawing one, so that laws can be summed exactly. Does not know where trees and laws come from.

use super::{block, deterministic_children, greedy, rejection, sample_and_match, traversal, typical, without_replacement};
use crate::number::Number;
use specdec::DraftTree;

/// The acceptance rules. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Temperature 0: the path of argmax tokens. Any tree.
    Greedy,
    /// The production rule: the target samples at every row, the walk follows the child that equals the sample. Any tree.
    SampleAndMatch,
    /// Children are point masses tried in order. Any tree.
    DeterministicChildren,
    /// One draft per position, drawn from q. Chains.
    Rejection,
    /// Recursive rejection; children drawn from q without replacement.
    WithoutReplacement,
    /// The whole block is judged at once; drafts drawn from q. Chains.
    Block,
    /// Leaves first, back to the root; children drawn from q without replacement.
    Traversal,
    /// Medusa's threshold on p. Lossy by design.
    Typical,
}

impl Rule {
    /// All rules, plain ones first.
    pub const ALL: [Self; 8] = [
        Self::Greedy,
        Self::SampleAndMatch,
        Self::DeterministicChildren,
        Self::Rejection,
        Self::WithoutReplacement,
        Self::Block,
        Self::Traversal,
        Self::Typical,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Greedy => "greedy",
            Self::SampleAndMatch => "sample-and-match",
            Self::DeterministicChildren => "deterministic children",
            Self::Rejection => "single-draft rejection",
            Self::WithoutReplacement => "rejection without replacement",
            Self::Block => "block verification",
            Self::Traversal => "traversal verification",
            Self::Typical => "typical acceptance",
        }
    }

    /// The rule's probability of every way the round can end, at most one decision per row.
    ///
    /// # Panics
    /// [`Rule::Rejection`] and [`Rule::Block`] panic on a tree that is not a chain.
    pub fn decide<N: Number>(self, drafted: &Drafted<N>) -> Vec<Decision<N>> {
        match self {
            Self::Block => block::decide(drafted),
            Self::Traversal => traversal::decide(drafted),
            Self::Typical => typical::decide(drafted),
            _ => walk(drafted, |p, q, children| self.step(p, q, children)),
        }
    }

    /// Whether the rule walks down from the root and decides at every row from that row's laws and children alone.
    pub(crate) fn is_a_walk(self) -> bool {
        !matches!(self, Self::Block | Self::Traversal | Self::Typical)
    }

    /// One row of a walk. `p`, `q`: \[V\]; `children`: their tokens in order.
    ///
    /// # Panics
    /// For rules that are not walks.
    pub(crate) fn step<N: Number>(self, p: &[N], q: &[N], children: &[usize]) -> Step<N> {
        match self {
            Self::Greedy => greedy::step(p, children),
            Self::SampleAndMatch => sample_and_match::step(p, children),
            Self::DeterministicChildren => deterministic_children::step(p, children),
            Self::Rejection => rejection::step(p, q, children),
            Self::WithoutReplacement => without_replacement::step(p, q, children),
            Self::Block | Self::Traversal | Self::Typical => panic!("{} judges whole paths, not rows", self.name()),
        }
    }
}

/// A drafted tree with the laws at its rows: `p[row]`, `q[row]` (\[V\] each) are the target's and the drafter's law of the
/// token after `row`. The order of siblings is the order in which they were drawn.
#[derive(Clone, Debug)]
pub struct Drafted<N> {
    pub(crate) tree: DraftTree,
    pub(crate) p: Vec<Vec<N>>,
    pub(crate) q: Vec<Vec<N>>,
}

impl<N: Number> Drafted<N> {
    /// Looks the laws of every row up by the row's token (a Markov model).
    ///
    /// # Panics
    /// If a token of the tree has no table row.
    pub fn new(tree: DraftTree, p: &[Vec<N>], q: &[Vec<N>]) -> Self {
        let rows = |table: &[Vec<N>]| tree.tokens().iter().map(|&t| table[t as usize].clone()).collect();
        Self { p: rows(p), q: rows(q), tree }
    }

    /// Token of a row as an index.
    pub(crate) fn token(&self, row: usize) -> usize {
        self.tree.tokens()[row] as usize
    }
}

/// One way a round can end.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision<N> {
    /// Last row of the accepted path; 0 when every draft was refused.
    pub row: usize,
    /// How probable this end is, given the tree.
    pub probability: N,
    /// Law of the token emitted after the path, \[V\]. Meaningless where `probability` is 0.
    pub next: Vec<N>,
}

/// What a walk does at one row.
pub(crate) struct Step<N> {
    /// Probability of entering each child.
    pub enter: Vec<N>,
    /// Probability of stopping here.
    pub stop: N,
    /// Law of the token after stopping, \[V\].
    pub next: Vec<N>,
}

fn walk<N: Number>(drafted: &Drafted<N>, step: impl Fn(&[N], &[N], &[usize]) -> Step<N>) -> Vec<Decision<N>> {
    let mut reach = vec![N::zero(); drafted.tree.rows()];
    reach[0] = N::one();
    let mut decisions = Vec::new();
    for row in 0..drafted.tree.rows() {
        let children: Vec<usize> = drafted.tree.children(row).collect();
        let tokens: Vec<usize> = children.iter().map(|&c| drafted.token(c)).collect();
        let here = step(&drafted.p[row], &drafted.q[row], &tokens);
        for (&child, enter) in children.iter().zip(here.enter) {
            reach[child] = reach[row].clone() * enter;
        }
        decisions.push(Decision { row, probability: reach[row].clone() * here.stop, next: here.next });
    }
    decisions
}
