//! Deterministic children, e.g. a top-k tree: each child's draft law is a point mass (Leviathan et al., arXiv 2211.17192,
//! with a one-hot q; children in turn as in SpecInfer, arXiv 2305.09781). Exact for every tree. Knows only the target's law.

use super::rule::Step;
use crate::number::{Number, normalised, without};

/// Accept x with probability r(x); after a refusal r(x) = 0, renormalised. r starts as p.
pub(super) fn step<N: Number>(p: &[N], children: &[usize]) -> Step<N> {
    let mut r = p.to_vec();
    let mut alive = N::one();
    let mut enter = Vec::new();
    for &x in children {
        enter.push(alive.clone() * r[x].clone());
        alive = alive * (N::one() - r[x].clone());
        r = normalised(without(&r, x)).unwrap_or(r);
    }
    Step { enter, stop: alive, next: r }
}
