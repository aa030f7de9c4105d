//! Sample-and-match: y ~ p at every row; if y is among the children the walk enters it, else y is emitted. Every emitted
//! token is a sample of the target, whatever was drafted (DDTree's tree walk, arXiv 2604.12989; with noise shared between
//! target and drafter: Daliri et al., arXiv 2408.07978). Knows only the target's law.

use super::rule::Step;
use crate::number::{Number, normalised, sum, without};

/// P(enter x) = p(x); what is left of p outside the children is emitted.
pub(super) fn step<N: Number>(p: &[N], children: &[usize]) -> Step<N> {
    let enter = children.iter().map(|&x| p[x].clone()).collect();
    let outside = children.iter().fold(p.to_vec(), |rest, &x| without(&rest, x));
    let stop = sum(outside.iter().cloned());
    Step { enter, stop, next: normalised(outside).unwrap_or_else(|| p.to_vec()) }
}
