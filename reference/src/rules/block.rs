//! Block verification of a chain (Sun et al., arXiv 2403.10444): the block keeps a joint weight, and the last
//! accepted position is the largest that passes its own test, refusals before it notwithstanding. Never accepts less than
//! single-draft rejection on average.

use super::rule::{Decision, Drafted};
use crate::number::{Number, at_most_one, excess, normalised, ratio, sum};

/// Rows of the chain are the paper's positions 0..=g, X_i being the token of row i.
///
/// # Panics
/// On a tree that is not a chain.
pub(super) fn decide<N: Number>(drafted: &Drafted<N>) -> Vec<Decision<N>> {
    let (p, q) = (&drafted.p, &drafted.q);
    let g = drafted.tree.drafted();
    assert_eq!(drafted.tree.max_depth(), g, "block verification takes a chain");

    // p_i = min(1, p_{i-1} p(X_i) / q(X_i)), p_0 = 1
    let mut weight = vec![N::one()];
    for i in 1..=g {
        let x = drafted.token(i);
        weight.push(at_most_one(weight[i - 1].clone() * ratio(p[i - 1][x].clone(), q[i - 1][x].clone())));
    }

    // h_i = m_i / (m_i + 1 - p_i) with m_i = sum max(p_i p - q, 0) before the end of the block, h_g = p_g
    let beyond = |i: usize| excess(&weight[i], &p[i], &q[i]);
    let inside = |i: usize| {
        let m = sum(beyond(i));
        ratio(m.clone(), m + N::one() - weight[i].clone())
    };
    let h = |i: usize| if i == g { weight[g].clone() } else { inside(i) };
    let h: Vec<N> = (0..=g).map(h).collect();

    // tau = max { i : u_i <= h_i }
    let all = |factors: Vec<N>| factors.into_iter().fold(N::one(), |product, x| product * x);
    let refuse = |i: usize| N::one() - h[i].clone();
    let last_is = |i: usize| h[i].clone() * all((i + 1..=g).map(refuse).collect());
    let next = |i: usize| if i == g { p[g].clone() } else { normalised(beyond(i)).unwrap_or_else(|| p[i].clone()) };
    (0..=g).map(|i| Decision { row: i, probability: last_is(i), next: next(i) }).collect()
}
