//! Greedy acceptance: at temperature 0 the target's law is a point mass, and the walk follows it (Leviathan et al.,
//! arXiv 2211.17192, section 2.2 with a one-hot p). Knows only the target's law.

use super::rule::Step;
use crate::number::{Number, sum};

/// Enters the child that is the most probable token; otherwise emits that token.
pub(super) fn step<N: Number>(p: &[N], children: &[usize]) -> Step<N> {
    let best = argmax(p);
    let enter: Vec<N> = children.iter().map(|&x| if x == best { N::one() } else { N::zero() }).collect();
    let stop = N::one() - sum(enter.iter().cloned());
    Step { enter, stop, next: point_mass(p) }
}

/// All mass on the most probable token.
pub(crate) fn point_mass<N: Number>(p: &[N]) -> Vec<N> {
    let best = argmax(p);
    (0..p.len()).map(|x| if x == best { N::one() } else { N::zero() }).collect()
}

/// The largest entry, ties to the lowest id.
fn argmax<N: Number>(p: &[N]) -> usize {
    (1..p.len()).fold(0, |best, x| if p[x] > p[best] { x } else { best })
}
