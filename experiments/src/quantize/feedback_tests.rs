//! The factor against the matrix it factorises, and feedback against nearest rounding where inputs vary together.

use super::*;
use proptest::prelude::*;

/// Rows of inputs that share two directions.
fn activations(rows: usize, n: usize, seed: usize) -> Vec<Vec<f64>> {
    let noise = |i: usize| ((i * 7919 + seed * 104_729) as f64 * 0.618).sin();
    let row = |r: usize| {
        (0..n).map(move |i| 3.0 * noise(r) * noise(i + 9000) + 2.0 * noise(r + 500) * noise(i + 70) + noise(r * n + i))
    };
    (0..rows).map(|r| row(r).collect()).collect()
}

fn gram(x: &[Vec<f64>], n: usize) -> Vec<f64> {
    (0..n * n).map(|e| x.iter().map(|row| row[e / n] * row[e % n]).sum()).collect()
}

fn output_error(x: &[Vec<f64>], weights: &[f32], back: &[f32]) -> f64 {
    let difference =
        |row: &Vec<f64>| row.iter().zip(weights.iter().zip(back)).map(|(x, (w, b))| x * f64::from(w - b)).sum::<f64>();
    x.iter().map(|row| difference(row).powi(2)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_factor_times_its_transpose_is_the_gram(n in 1usize..40, seed in 0usize..100) {
        let mut expected = gram(&activations(60, n, seed), n);
        (0..n).for_each(|i| expected[i * n + i] += 1.0);
        let mut m = expected.clone();
        factorise(&mut m, n);
        for i in 0..n {
            for j in 0..n {
                let product: f64 = (i.max(j)..n).map(|k| m[i * n + k] * m[j * n + k]).sum();
                prop_assert!((product - expected[i * n + j]).abs() < 1e-8 * expected[0].abs().max(60.0));
            }
        }
    }

    #[test]
    fn with_independent_inputs_feedback_is_nearest_rounding(n in 1usize..100, seed in 0usize..100) {
        let identity = (0..n * n).map(|e| f64::from(e % n == e / n)).collect();
        let weights: Vec<f32> = (0..2 * n).map(|i| ((i + seed) as f32 * 1.7).sin()).collect();
        let (codes, grids) = Feedback::new(identity, n, 0.01).unwrap().quantise(&weights, Width::Four, 64);
        for (i, &w) in weights.iter().enumerate() {
            let (row, input) = (i / n, i % n);
            prop_assert_eq!(codes[i], grids[row * n.div_ceil(64) + input / 64].code(w));
        }
    }
}

#[test]
fn feedback_leaves_less_error_in_the_outputs_than_nearest_rounding() {
    let n = 96;
    let x = activations(200, n, 1);
    let feedback = Feedback::new(gram(&x, n), n, 0.01).unwrap();
    let (mut with, mut without) = (0.0, 0.0);
    for row in 0..20 {
        let weights: Vec<f32> = (0..n).map(|i| ((i * 31 + row * 977) as f32).sin()).collect();
        let (codes, grids) = feedback.quantise(&weights, Width::Four, 32);
        let back: Vec<f32> = codes.iter().enumerate().map(|(i, &c)| grids[i / 32].value(c)).collect();
        with += output_error(&x, &weights, &back);
        let nearest = |w: &[f32]| {
            w.iter()
                .map(|&v| {
                    let g = Width::Four.best_grid(w, None);
                    g.value(g.code(v))
                })
                .collect::<Vec<f32>>()
        };
        without += output_error(&x, &weights, &weights.chunks(32).flat_map(nearest).collect::<Vec<f32>>());
    }
    assert!(with < 0.6 * without, "{with} against {without}");
}

#[test]
fn a_layer_that_calibration_never_excited_is_rounded_to_nearest() {
    let feedback = Feedback::new(vec![0.0; 16], 4, 0.01).unwrap();
    let weights = [0.1, -0.5, 0.3, 0.9];
    let (codes, grids) = feedback.quantise(&weights, Width::Eight, 4);
    assert!(codes.iter().zip(&weights).all(|(&c, &w)| c == grids[0].code(w)));
    assert!(Feedback::new(vec![f64::NAN; 16], 4, 0.01).is_err());
}
