//! Single-draft rejection (Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318, algorithm 2):
//! x ~ q is accepted with probability min(1, p(x)/q(x)), else a token of norm(max(p - q, 0)) is emitted.

use super::rule::Step;
use crate::number::{Number, at_most_one, excess, normalised, ratio};

/// One draft, or none at the end of the chain.
///
/// # Panics
/// On more than one child.
pub(super) fn step<N: Number>(p: &[N], q: &[N], children: &[usize]) -> Step<N> {
    assert!(children.len() <= 1, "single-draft rejection takes a chain, got {} siblings", children.len());
    let Some(&x) = children.first() else {
        return Step { enter: vec![], stop: N::one(), next: p.to_vec() };
    };
    let accept = acceptance(p, q, x);
    // p = q has no residual and is never refused, but for a rounding's worth of mass in f64.
    let next = residual(p, q).unwrap_or_else(|| p.to_vec());
    Step { enter: vec![accept.clone()], stop: N::one() - accept, next }
}

/// min(1, p(x)/q(x)).
pub(crate) fn acceptance<N: Number>(p: &[N], q: &[N], x: usize) -> N {
    at_most_one(ratio(p[x].clone(), q[x].clone()))
}

/// norm(max(p - q, 0)), `None` when p = q.
pub(crate) fn residual<N: Number>(p: &[N], q: &[N]) -> Option<Vec<N>> {
    normalised(excess(&N::one(), p, q))
}
