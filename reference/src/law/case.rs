//! What one case of the check holds: Markov tables of whole-number weights, what is drafted, and figures somebody else
//! computed for it, if any. The built-in cases carry no figures; their laws are compared with ancestral sampling.

use crate::enumerate::{Drafts, Tables};
use crate::number::Number;
use crate::rules::Rule;
use num_rational::BigRational;
use specdec::{DraftTree, philox::philox4x32};
use std::collections::BTreeMap;

/// One case. Its invariants are the reader's and the generator's: square tables without zero rows, tokens in range.
#[derive(Clone, Debug)]
pub struct Case {
    pub(super) name: String,
    pub(super) p_weights: Vec<Vec<u32>>,
    pub(super) q_weights: Vec<Vec<u32>>,
    pub(super) last: u32,
    pub(super) drafts: Drafts,
    pub(super) expected: Expected,
}

impl Case {
    /// Section and number, as in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn tables<N: Number>(&self) -> Tables<N> {
        Tables::new(&self.p_weights, &self.q_weights).expect("a case has no row of zeros")
    }

    /// Whether the drafter could have drawn the fixed tree.
    pub(super) fn is_drawable(&self) -> bool {
        match &self.drafts {
            Drafts::Random(_) => true,
            Drafts::Fixed(tree) => (1..tree.rows()).all(|row| {
                let parent = tree.parents()[row].unwrap_or(0);
                let parent = if parent == 0 { self.last } else { tree.tokens()[parent] };
                self.q_weights[parent as usize][tree.tokens()[row] as usize] > 0
            }),
        }
    }

    /// An upper bound of the trees that [`Drafts::Random`] can draw.
    pub(super) fn trees(&self) -> f64 {
        match &self.drafts {
            Drafts::Fixed(_) => 1.0,
            Drafts::Random(widths) => {
                let support = largest_support(&self.q_weights);
                widths
                    .iter()
                    .rev()
                    .fold(1.0, |below, &width| orders(support, width) * f64::powi(below, width.min(support) as i32))
            }
        }
    }
}

/// Tokens with weight in the widest row.
pub(super) fn largest_support(weights: &[Vec<u32>]) -> usize {
    weights.iter().map(|row| row.iter().filter(|&&w| w > 0).count()).max().unwrap_or(0)
}

/// Ordered draws of `width` out of `support`.
pub(super) fn orders(support: usize, width: usize) -> f64 {
    (0..width.min(support)).map(|drawn| (support - drawn) as f64).product()
}

/// A probability as a fraction and as the nearest float.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub fraction: BigRational,
    pub float: f64,
}

/// Figures to compare with.
#[derive(Clone, Debug, Default)]
pub(super) enum Expected {
    /// None: the law's completion is compared with ancestral sampling all the same.
    #[default]
    Nothing,
    /// One draft token.
    Single(SingleFigures),
    /// One round of a rule.
    Round(Rule, RoundFigures),
}

#[derive(Clone, Debug)]
pub(super) struct SingleFigures {
    pub accept_prob: Option<Figure>,
    /// `None` where q is 0.
    pub per_token_accept: Option<Vec<Option<f64>>>,
    /// `None` where p = q.
    pub residual: Option<Option<Vec<f64>>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RoundFigures {
    pub law: Option<Vec<(Vec<u32>, f64)>>,
    pub outcomes: Option<usize>,
    pub length_probs: BTreeMap<usize, Figure>,
    pub first_token_probs: BTreeMap<u32, Figure>,
    pub n_accepted_probs: Vec<Figure>,
    pub expected_emitted: Option<Figure>,
}

/// Chains, random trees and fixed trees over two to four tokens: flat, peaked, sparse, one-hot, equal and disjoint laws.
pub fn built_in_cases() -> Vec<Case> {
    let kinds = [
        ("flat", Kind::Flat, Kind::Flat),
        ("peaked p", Kind::Peaked, Kind::Flat),
        ("peaked q", Kind::Flat, Kind::Peaked),
        ("sparse", Kind::Sparse, Kind::Sparse),
        ("one-hot p", Kind::OneHot, Kind::Flat),
        ("one-hot q", Kind::Flat, Kind::OneHot),
        ("p = q", Kind::Equal, Kind::Equal),
        ("disjoint", Kind::Even, Kind::Odd),
    ];
    let mut cases = Vec::new();
    for (label, p, q) in kinds {
        for (vocab, drafts) in built_in_drafts() {
            let number = cases.len() as u32;
            cases.push(Case {
                name: format!("built-in {number} ({label})"),
                p_weights: table(p, vocab, 2 * number),
                q_weights: table(q, vocab, 2 * number + 1),
                last: number % vocab,
                drafts,
                expected: Expected::Nothing,
            });
        }
    }
    cases
}

fn built_in_drafts() -> Vec<(u32, Drafts)> {
    let fixed = |drafted: &[(usize, u32)]| {
        let drafted: Vec<_> = drafted.iter().map(|&(parent, token)| (parent, token, 0.0)).collect();
        Drafts::Fixed(DraftTree::new(0, &drafted).expect("parents come first and siblings differ"))
    };
    vec![
        (2, Drafts::Random(vec![1])),
        (4, Drafts::Random(vec![1, 1])),
        (3, Drafts::Random(vec![1, 1, 1])),
        (4, Drafts::Random(vec![3])),
        (4, Drafts::Random(vec![2, 1])),
        (3, Drafts::Random(vec![2, 2])),
        (3, Drafts::Random(vec![1, 2])),
        (4, fixed(&[(0, 1), (1, 2), (2, 0)])),
        (4, fixed(&[(0, 3), (0, 0), (0, 2)])),
        (4, fixed(&[(0, 0), (0, 1), (1, 2), (1, 0), (2, 3), (3, 1)])),
    ]
}

#[derive(Clone, Copy)]
enum Kind {
    Flat,
    Peaked,
    Sparse,
    OneHot,
    Equal,
    Even,
    Odd,
}

/// A table of pseudo-random weights: small whole numbers, so that exact fractions stay short.
fn table(kind: Kind, vocab: u32, stream: u32) -> Vec<Vec<u32>> {
    let stream = if matches!(kind, Kind::Equal) { stream / 2 } else { stream };
    let row = |last: u32| {
        let words = |x: u32| philox4x32([0, 0], [x, last, stream, 0]);
        let favourite = words(vocab)[0] % vocab;
        let weight = |x: u32| {
            let small = 1 + words(x)[0] % 9;
            match kind {
                Kind::Flat | Kind::Equal => small,
                Kind::Peaked => small + if x == favourite { 40 } else { 0 },
                Kind::Sparse => small * u32::from(x == favourite || words(x)[1] % 2 == 0),
                Kind::OneHot => u32::from(x == favourite),
                Kind::Even => small * ((x + 1) % 2),
                Kind::Odd => small * (x % 2),
            }
        };
        (0..vocab).map(weight).collect()
    };
    (0..vocab).map(row).collect()
}
