//! The block Hadamard transform (specdec::hadamard) of rows of weights and of Gram matrices. It spreads outliers among the
//! inputs over their block, which codes of few bits need. Knows arrays; nothing of files or codes.

use specdec::hadamard::{fold_row, forward};

/// Name of the tensor that holds the signs of all matrices with `inputs` inputs.
pub fn signs_name(inputs: usize) -> String {
    format!("hadamard.signs.{inputs}")
}

/// `w <- w D H / 32` for rows `[rows, n]`, computed in f64 and rounded once.
pub fn fold(weights: &mut [f32], signs: &[i8]) {
    let mut wide = vec![0.0; signs.len()];
    for row in weights.chunks_exact_mut(signs.len()) {
        wide.iter_mut().zip(row.iter()).for_each(|(w, &x)| *w = f64::from(x));
        fold_row(&mut wide, signs);
        row.iter_mut().zip(&wide).for_each(|(x, &w)| *x = w as f32);
    }
}

/// `G <- (H D) G (H D)^T`: the Gram matrix of the transformed inputs, `[n, n]` row-major and symmetric, from that of the inputs.
pub fn rotate_gram(gram: &mut [f64], signs: &[i8]) {
    let n = signs.len();
    gram.chunks_exact_mut(n).for_each(|row| forward(row, signs));
    // (H D G)^T = G (H D)^T, since G is symmetric: rows once more are the other side.
    for i in 0..n {
        for j in 0..i {
            gram.swap(i * n + j, j * n + i);
        }
    }
    gram.chunks_exact_mut(n).for_each(|row| forward(row, signs));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use specdec::hadamard::signs;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_gram_of_transformed_inputs_is_the_transformed_gram(inputs in 1usize..100, seed in 0usize..1000) {
            let signs = signs(inputs);
            let value = |r: usize, i: usize| ((i * i + 31 * i + r * 17 + seed) as f64).cos();
            let rows: Vec<Vec<f64>> = (0..3).map(|r| (0..inputs).map(|i| value(r, i)).collect()).collect();
            let gram = |rows: &[Vec<f64>]| -> Vec<f64> {
                (0..inputs * inputs).map(|e| rows.iter().map(|x| x[e / inputs] * x[e % inputs]).sum()).collect()
            };
            let mut expected = rows.clone();
            expected.iter_mut().for_each(|x| forward(x, &signs));
            let mut rotated = gram(&rows);
            rotate_gram(&mut rotated, &signs);
            prop_assert!(rotated.iter().zip(gram(&expected)).all(|(a, b)| (a - b).abs() < 1e-9));
        }
    }

    #[test]
    fn every_row_is_folded_by_itself() {
        let mut weights: Vec<f32> = (0..80).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut second: Vec<f64> = weights[40..].iter().map(|&w| f64::from(w)).collect();
        fold(&mut weights, &signs(40));
        fold_row(&mut second, &signs(40));
        assert!(weights[40..].iter().zip(&second).all(|(&w, &s)| w == s as f32));
    }
}
