//! The arithmetic of a rule against figures that somebody else computed: laws, counts of accepted drafts, first tokens,
//! lengths, residuals; in f64 against the floats and in rationals against the fractions.

use super::case::{Case, Expected, Figure, RoundFigures, SingleFigures};
use crate::enumerate::{Law, Tables, distance, emitted, expected_tokens};
use crate::number::{Number, sum};
use crate::rules::rejection;
use num_rational::BigRational;

/// How far a case's own figures are from ours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gap {
    /// Largest absolute error in f64.
    pub float: f64,
    /// Whether every fraction is met exactly.
    pub exact: bool,
}

impl Gap {
    pub const NONE: Self = Self { float: 0.0, exact: true };

    fn float(found: f64, expected: f64) -> Self {
        Self { float: (found - expected).abs(), exact: true }
    }

    /// NaN counts as the largest error.
    pub fn worst(self, other: Self) -> Self {
        let float = if other.float > self.float || other.float.is_nan() { other.float } else { self.float };
        Self { float, exact: self.exact && other.exact }
    }
}

/// The gap over all figures of a case; none without figures.
pub(super) fn gap(case: &Case, float: &Tables<f64>, exact: &Tables<BigRational>) -> Gap {
    match &case.expected {
        Expected::Nothing => Gap::NONE,
        Expected::Single(figures) => single_gap(figures, case.last as usize, float, exact),
        Expected::Round(rule, figures) => {
            let float = emitted(*rule, float, case.last, &case.drafts);
            round_gap(figures, &float, &emitted(*rule, exact, case.last, &case.drafts))
        }
    }
}

fn round_gap(expected: &RoundFigures, float: &Law<f64>, exact: &Law<BigRational>) -> Gap {
    let mut gaps = vec![Gap::NONE];
    for (&length, figure) in &expected.length_probs {
        gaps.push(against(figure, mass(float, |s| s.len() == length), mass(exact, |s| s.len() == length)));
    }
    for (&token, figure) in &expected.first_token_probs {
        gaps.push(against(figure, mass(float, |s| s[0] == token), mass(exact, |s| s[0] == token)));
    }
    // A round that emits n tokens accepted n - 1 drafts.
    for (accepted, figure) in expected.n_accepted_probs.iter().enumerate() {
        gaps.push(against(figure, mass(float, |s| s.len() == accepted + 1), mass(exact, |s| s.len() == accepted + 1)));
    }
    if let Some(figure) = &expected.expected_emitted {
        gaps.push(against(figure, expected_tokens(float), expected_tokens(exact)));
    }
    if let Some(law) = &expected.law {
        gaps.push(Gap { float: distance(float, &law.iter().cloned().collect()), exact: true });
    }
    if let Some(outcomes) = expected.outcomes {
        gaps.push(Gap { float: 0.0, exact: exact.len() == outcomes });
    }
    gaps.into_iter().fold(Gap::NONE, Gap::worst)
}

fn single_gap(expected: &SingleFigures, last: usize, float: &Tables<f64>, exact: &Tables<BigRational>) -> Gap {
    let (p, q) = (&float.p[last], &float.q[last]);
    let mut gaps = vec![Gap::NONE];
    if let Some(figure) = &expected.accept_prob {
        gaps.push(against(figure, accept_prob(p, q), accept_prob(&exact.p[last], &exact.q[last])));
    }
    if let Some(figures) = &expected.per_token_accept {
        for (x, figure) in figures.iter().enumerate() {
            let found = (q[x] > 0.0).then(|| rejection::acceptance(p, q, x));
            gaps.push(both(found, *figure));
        }
    }
    if let Some(figures) = &expected.residual {
        let found = rejection::residual(p, q);
        for x in 0..p.len() {
            gaps.push(both(found.as_ref().map(|r| r[x]), figures.as_ref().map(|r| r[x])));
        }
    }
    gaps.into_iter().fold(Gap::NONE, Gap::worst)
}

/// P(accept) = sum_x q(x) min(1, p(x)/q(x)).
fn accept_prob<N: Number>(p: &[N], q: &[N]) -> N {
    sum((0..p.len()).map(|x| q[x].clone() * rejection::acceptance(p, q, x)))
}

fn against(figure: &Figure, float: f64, exact: BigRational) -> Gap {
    Gap { exact: exact == figure.fraction, ..Gap::float(float, figure.float) }
}

fn both(found: Option<f64>, expected: Option<f64>) -> Gap {
    match (found, expected) {
        (None, None) => Gap::NONE,
        (Some(found), Some(expected)) => Gap::float(found, expected),
        _ => Gap { float: f64::INFINITY, exact: false },
    }
}

fn mass<N: Number>(law: &Law<N>, of: impl Fn(&[u32]) -> bool) -> N {
    sum(law.iter().filter(|(sequence, _)| of(sequence)).map(|(_, x)| x.clone()))
}
