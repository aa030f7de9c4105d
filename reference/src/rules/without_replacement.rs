//! Recursive rejection without replacement (Sequoia, arXiv 2402.12374; SpecInfer, arXiv 2305.09781, without the
//! zeroing of q). Exact on average over the children's draws, not for one fixed tree.

use super::rule::Step;
use crate::number::{Number, at_most_one, excess, normalised, ratio, without};

/// r starts as p, d as q. Accept x with probability min(1, r(x)/d(x)); after a refusal r = norm(max(r - d, 0)) and
/// d = norm(d without x).
pub(super) fn step<N: Number>(p: &[N], q: &[N], children: &[usize]) -> Step<N> {
    let (mut r, mut d) = (p.to_vec(), q.to_vec());
    let mut alive = N::one();
    let mut enter = Vec::new();
    for &x in children {
        let accept = at_most_one(ratio(r[x].clone(), d[x].clone()));
        enter.push(alive.clone() * accept.clone());
        alive = alive * (N::one() - accept);
        r = normalised(excess(&N::one(), &r, &d)).unwrap_or(r);
        d = normalised(without(&d, x)).unwrap_or(d);
    }
    Step { enter, stop: alive, next: r }
}
