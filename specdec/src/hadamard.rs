//! The block-32 random Hadamard transform on the input side of a linear (incoherence processing, QuIP#, arXiv 2402.04396):
//! with the unnormalised Sylvester matrix H of 32 (H H = 32 I) and random signs D, `W x = (W D H / 32) (H D x)`.
//! Signs are a function of the input length alone, so all linears that read one vector share its transform.
//! The order of operations is part of docs/numerics.md; here it is written once in f64.

use crate::philox::philox4x32;

/// Inputs that are mixed with each other. Inputs behind the last whole block stay as they are.
pub const BLOCK: usize = 32;

/// Philox key of the signs: "straw", "sign" in ASCII, cut to 32 bits each.
const KEY: [u32; 2] = [0x7374_7261, 0x7369_676e];

/// The diagonal of D for vectors of `n` inputs, each 1 or -1, and 1 behind the last whole block: bit `i % 128` of Philox at
/// counter `[i / 128, n, 0, 0]` (words in order, low bit first); a set bit is -1.
pub fn signs(n: usize) -> Vec<i8> {
    let whole = n - n % BLOCK;
    let mut signs = vec![1; n];
    for (block, signs) in signs[..whole].chunks_mut(128).enumerate() {
        let words = philox4x32(KEY, [block as u32, n as u32, 0, 0]);
        for (i, sign) in signs.iter_mut().enumerate() {
            *sign = if words[i / 32] >> (i % 32) & 1 == 1 { -1 } else { 1 };
        }
    }
    signs
}

/// `x' = H D x` in place, block by block. Butterflies of strides 1, 2, 4, 8, 16 in this order: the pair `(i, i + s)`
/// becomes `(a + b, a - b)`.
pub fn forward(x: &mut [f64], signs: &[i8]) {
    for (x, signs) in x.chunks_exact_mut(BLOCK).zip(signs.chunks_exact(BLOCK)) {
        x.iter_mut().zip(signs).for_each(|(x, &d)| *x *= f64::from(d));
        butterflies(x);
    }
}

/// A row of `W D H / 32` from a row of W, in place.
pub fn fold_row(w: &mut [f64], signs: &[i8]) {
    forward(w, signs);
    let whole = w.len() - w.len() % BLOCK;
    w[..whole].iter_mut().for_each(|w| *w /= BLOCK as f64);
}

/// A row of W from a row of `W D H / 32`, in place: `w = D H w'`. How an embedding's row is read.
pub fn unfold_row(w: &mut [f64], signs: &[i8]) {
    for (w, signs) in w.chunks_exact_mut(BLOCK).zip(signs.chunks_exact(BLOCK)) {
        butterflies(w);
        w.iter_mut().zip(signs).for_each(|(w, &d)| *w *= f64::from(d));
    }
}

fn butterflies(x: &mut [f64]) {
    for stride in [1, 2, 4, 8, 16] {
        for pair in x.chunks_exact_mut(2 * stride) {
            let (low, high) = pair.split_at_mut(stride);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::philox::TokenNoise;

    fn numbers(n: usize) -> Vec<f64> {
        (0..n as u32).map(|i| f64::from(TokenNoise::new(5, 0).uniform(i)) - 0.5).collect()
    }

    #[test]
    fn the_transform_is_the_sylvester_matrix_and_leaves_ragged_ends_alone() {
        let (x, n) = (numbers(70), 70);
        let signs = signs(n);
        let mut y = x.clone();
        forward(&mut y, &signs);
        for (j, &found) in y[..64].iter().enumerate() {
            let (block, row) = (j / 32 * 32, j % 32);
            let entry = |i: usize| if (row & i).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            let want: f64 = (0..32).map(|i| entry(i) * f64::from(signs[block + i]) * x[block + i]).sum();
            assert!((found - want).abs() < 1e-12, "element {j}");
        }
        assert_eq!(y[64..], x[64..]);
    }

    #[test]
    fn folded_weights_and_transformed_inputs_give_the_same_product() {
        for n in [7, 32, 100, 256] {
            let (w, x, signs) = (numbers(n), numbers(2 * n)[n..].to_vec(), signs(n));
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let (mut folded, mut turned) = (w.clone(), x.clone());
            fold_row(&mut folded, &signs);
            forward(&mut turned, &signs);
            assert!((dot(&folded, &turned) - dot(&w, &x)).abs() < 1e-12, "{n} inputs");
            unfold_row(&mut folded, &signs);
            assert!(folded.iter().zip(&w).all(|(a, b)| (a - b).abs() < 1e-15), "{n} inputs");
        }
    }

    #[test]
    fn signs_are_fixed_balanced_and_depend_on_the_length() {
        let long = signs(4096);
        let negative = long.iter().filter(|&&d| d == -1).count();
        assert!((1850..2250).contains(&negative), "{negative} of 4096 are negative");
        assert_ne!(long[..1024], signs(1024)[..]);
        assert_eq!(signs(40)[32..], [1; 8]);
        // Files store the signs they were folded with; a change of this rule would make new files differ from old ones.
        let word = signs(64).iter().enumerate().fold(0u64, |w, (i, &d)| w | u64::from(d == -1) << i);
        assert_eq!(word, 0x90e4_755e_d3f6_6553, "{word:#x}");
    }
}
