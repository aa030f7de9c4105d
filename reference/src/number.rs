//! The two number types the acceptance rules are written over: f64, and exact rationals for laws with integer weights.
//! Also the three operations on unnormalised laws that every rule uses. Knows nothing of drafts.

use num_rational::BigRational;
use num_traits::{Num, ToPrimitive};
use std::fmt::Debug;

/// A probability: f64 (rounded) or [`BigRational`] (exact).
pub trait Number: Num + Clone + PartialOrd + Debug {
    /// A whole number.
    fn whole(n: u32) -> Self;
    /// The nearest f64.
    fn to_f64(&self) -> f64;
}

impl Number for f64 {
    fn whole(n: u32) -> Self {
        n.into()
    }
    fn to_f64(&self) -> f64 {
        *self
    }
}

impl Number for BigRational {
    fn whole(n: u32) -> Self {
        BigRational::from_integer(n.into())
    }
    fn to_f64(&self) -> f64 {
        ToPrimitive::to_f64(self).unwrap_or(f64::NAN)
    }
}

/// `min(1, x)`.
pub(crate) fn at_most_one<N: Number>(x: N) -> N {
    if x > N::one() { N::one() } else { x }
}

/// `numerator / denominator`, and 0 for 0/0: the conditional probability of something that cannot happen.
pub(crate) fn ratio<N: Number>(numerator: N, denominator: N) -> N {
    if denominator.is_zero() { N::zero() } else { numerator / denominator }
}

/// Sum of all values.
pub(crate) fn sum<N: Number>(values: impl IntoIterator<Item = N>) -> N {
    values.into_iter().fold(N::zero(), |total, x| total + x)
}

/// `weights / sum(weights)`, `None` when all are 0.
pub(crate) fn normalised<N: Number>(weights: Vec<N>) -> Option<Vec<N>> {
    let total = sum(weights.iter().cloned());
    (!total.is_zero()).then(|| weights.into_iter().map(|w| w / total.clone()).collect())
}

/// `max(scale * r - d, 0)` token by token.
pub(crate) fn excess<N: Number>(scale: &N, r: &[N], d: &[N]) -> Vec<N> {
    let positive = |x: N| if x > N::zero() { x } else { N::zero() };
    r.iter().zip(d).map(|(r, d)| positive(scale.clone() * r.clone() - d.clone())).collect()
}

/// `weights` with one token's set to 0.
pub(crate) fn without<N: Number>(weights: &[N], token: usize) -> Vec<N> {
    weights.iter().enumerate().map(|(t, w)| if t == token { N::zero() } else { w.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_is_exact_in_rationals_only() {
        let third = |_| BigRational::whole(1) / BigRational::whole(3);
        assert_eq!(sum((0..3).map(third)), BigRational::whole(1));
        let tenth = f64::whole(1) / f64::whole(10);
        assert_ne!(sum([tenth; 10]), 1.0);
        assert_eq!(Number::to_f64(&third(0)), 1.0 / 3.0);
    }

    #[test]
    fn nothing_normalises_to_nothing() {
        assert_eq!(normalised(vec![0.0, 0.0]), None);
        assert_eq!(normalised(vec![1.0, 3.0]), Some(vec![0.25, 0.75]));
        assert_eq!(ratio(0.0, 0.0), 0.0);
    }
}
