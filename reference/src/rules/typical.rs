//! Typical acceptance (Medusa, arXiv 2401.10774): x is accepted when p(x) > min(epsilon, delta exp(-H(p))).
//! **Lossy**: it exists so that the verifier can be seen to reject it.

use super::rule::{Decision, Drafted};
use crate::number::Number;

/// Medusa's published defaults: posterior threshold 0.09 and its square root.
const EPSILON: f64 = 0.09;
const DELTA: f64 = 0.3;

/// The longest path of typical tokens (the first of equal length), then a token of p.
pub(super) fn decide<N: Number>(drafted: &Drafted<N>) -> Vec<Decision<N>> {
    let tree = &drafted.tree;
    let mut typical = vec![true; tree.rows()];
    let mut deepest = 0;
    for row in 1..tree.rows() {
        let parent = tree.parents()[row].unwrap_or(0);
        let p: Vec<f64> = drafted.p[parent].iter().map(Number::to_f64).collect();
        typical[row] = typical[parent] && p[drafted.token(row)] > EPSILON.min(DELTA * (-entropy(&p)).exp());
        if typical[row] && tree.depths()[row] > tree.depths()[deepest] {
            deepest = row;
        }
    }
    vec![Decision { row: deepest, probability: N::one(), next: drafted.p[deepest].clone() }]
}

/// H(p) in nats.
fn entropy(p: &[f64]) -> f64 {
    p.iter().filter(|&&x| x > 0.0).map(|x| -x * x.ln()).sum()
}
