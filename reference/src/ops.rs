//! The elementary operations: norms, activations, rotary positions, convolution, softmax.
//! Each is the formula in f64. What a row gets depends on that row alone, never on how many rows come with it.
//! Knows arrays; nothing of layers or models.

use ndarray::{Array, Array1, Array2, Array3, ArrayView1, ArrayView2, ArrayViewMut1, Axis, Dimension, RemoveAxis};

/// `y = W x + b` for every row. `weight: [out, in]`.
pub struct Linear {
    /// `[out, in]`.
    pub weight: Array2<f64>,
    /// `[out]`, where the layer has one.
    pub bias: Option<Array1<f64>>,
}

impl Linear {
    /// `x: [rows, in]`; returns `[rows, out]`.
    pub fn apply(&self, x: &Array2<f64>) -> Array2<f64> {
        let y = product(x, &self.weight);
        match &self.bias {
            Some(bias) => y + bias,
            None => y,
        }
    }
}

/// `x W^T`, one dot product per element, so that a row's result knows nothing of the other rows. `x: [rows, in]`,
/// `weight: [out, in]`; returns `[rows, out]`.
pub fn product(x: &Array2<f64>, weight: &Array2<f64>) -> Array2<f64> {
    let x = x.as_standard_layout();
    let mut y = Array2::zeros((x.nrows(), weight.nrows()));
    for (w, mut column) in weight.outer_iter().zip(y.columns_mut()) {
        for (row, value) in x.outer_iter().zip(&mut column) {
            *value = w.dot(&row);
        }
    }
    y
}

/// RMSNorm: `x / sqrt(mean(x^2) + eps) * scale`.
pub struct Norm {
    scale: Array1<f64>,
    eps: f64,
}

impl Norm {
    /// The weight is the scale.
    pub fn plain(weight: Array1<f64>, eps: f64) -> Self {
        Self { scale: weight, eps }
    }

    /// The weight is stored around 0: the scale is `1 + w`.
    pub fn plus_one(weight: Array1<f64>, eps: f64) -> Self {
        Self { scale: 1.0 + weight, eps }
    }

    /// Over the last axis.
    pub fn apply<D: Dimension + RemoveAxis>(&self, x: &Array<f64, D>) -> Array<f64, D> {
        let mut y = x.clone();
        for mut row in y.lanes_mut(Axis(x.ndim() - 1)) {
            let mean_square = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
            let rms = (mean_square + self.eps).sqrt();
            row.zip_mut_with(&self.scale, |v, w| *v = *v / rms * w);
        }
        y
    }
}

/// The delta rule's own epsilon; not the model's `rms_norm_eps`.
const L2_EPS: f64 = 1e-6;

/// `x / sqrt(sum(x^2) + 1e-6)`: a sum, not a mean.
pub fn l2_norm(x: ArrayView1<f64>) -> Array1<f64> {
    let sum_square = x.iter().map(|v| v * v).sum::<f64>();
    &x / (sum_square + L2_EPS).sqrt()
}

/// `1 / (1 + exp(-x))`.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`.
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + exp(x))`, without overflow.
pub fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Softmax of one row.
pub fn softmax(x: ArrayView1<f64>) -> Array1<f64> {
    let largest = x.fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    let e = x.mapv(|v| (v - largest).exp());
    let total = e.iter().sum::<f64>();
    e / total
}

/// Log-softmax of one row.
pub fn log_softmax(x: ArrayView1<f64>) -> Array1<f64> {
    let largest = x.fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    let log_total = x.iter().map(|v| (v - largest).exp()).sum::<f64>().ln();
    x.mapv(|v| v - largest - log_total)
}

/// Rotary positions (RoFormer, arXiv 2104.09864) on the first `rotary_dim` channels of every head; the others pass.
/// Channels `i` and `i + rotary_dim / 2` are a pair and turn by `position * theta^(-2 i / rotary_dim)`.
/// `x: [rows, heads, channels]`, one position per row.
pub fn rope(x: &mut Array3<f64>, positions: &[usize], rotary_dim: usize, theta: f64) {
    for (mut heads, &position) in x.outer_iter_mut().zip(positions) {
        for head in heads.outer_iter_mut() {
            rotate(head, position, rotary_dim, theta);
        }
    }
}

fn rotate(mut head: ArrayViewMut1<f64>, position: usize, rotary_dim: usize, theta: f64) {
    let half = rotary_dim / 2;
    for i in 0..half {
        let angle = position as f64 * theta.powf(-2.0 * i as f64 / rotary_dim as f64);
        let (sin, cos) = angle.sin_cos();
        let (first, second) = (i, i + half);
        let (a, b) = (head[first], head[second]);
        head[first] = a * cos - b * sin;
        head[second] = b * cos + a * sin;
    }
}

/// Depthwise causal convolution at one position. `window: [K, channels]`, newest row last; `taps: [channels, K]`, of
/// which tap `K - 1` meets the newest row. Returns `[channels]`.
pub fn causal_conv(window: ArrayView2<f64>, taps: ArrayView2<f64>) -> Array1<f64> {
    (&window.t() * &taps).sum_axis(Axis(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{array, s};
    use proptest::{prelude::*, test_runner::RngSeed};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Default::default() })]
        /// What a linear gives a row must not depend, in any bit, on the rows beside it.
        #[test]
        fn a_row_of_a_product_does_not_know_its_neighbours(rows in 2usize..35, out in 1usize..40, len in 1usize..600, seed in 0u64..1000) {
            let value = |i: usize, j: usize| ((i * 7919 + j * 104_729) as f64 + seed as f64).sin();
            let linear = Linear { weight: Array2::from_shape_fn((out, len), |(i, j)| value(i + 50, j)), bias: None };
            let x = Array2::from_shape_fn((rows, len), |(i, j)| value(i, j));
            let all = linear.apply(&x);
            for row in 0..rows {
                let alone = linear.apply(&x.slice(s![row..row + 1, ..]).to_owned());
                prop_assert_eq!(alone.row(0), all.row(row));
            }
        }

        #[test]
        fn rotation_keeps_lengths_and_only_differences_count(p in 0usize..500, q in 0usize..500, shift in 0usize..500) {
            let x = Array3::from_shape_fn((2, 1, 12), |(r, _, c)| (r as f64 + 0.3) * (c as f64 - 4.5).cos());
            let dot = |a: usize, b: usize| {
                let mut y = x.clone();
                rope(&mut y, &[a, b], 8, 10_000.0);
                prop_assert_eq!(y.slice(s![.., .., 8..]), x.slice(s![.., .., 8..]));
                let (a, b) = (y.slice(s![0, 0, ..]), y.slice(s![1, 0, ..]));
                Ok(a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>())
            };
            prop_assert!((dot(p, q)? - dot(p + shift, q + shift)?).abs() < 1e-10);
        }
    }

    #[test]
    fn norms_are_the_two_conventions() {
        let x = array![[3.0, 4.0]];
        let w = array![0.5, 0.0];
        let rms = (12.5f64 + 1e-6).sqrt();
        assert_eq!(Norm::plain(w.clone(), 1e-6).apply(&x), array![[3.0 / rms * 0.5, 0.0]]);
        assert_eq!(Norm::plus_one(w, 1e-6).apply(&x), array![[3.0 / rms * 1.5, 4.0 / rms]]);
        let l2 = l2_norm(x.row(0));
        assert!((l2[0] - 3.0 / (25.0f64 + 1e-6).sqrt()).abs() < 1e-15);
    }

    #[test]
    fn activations_survive_their_extremes() {
        assert_eq!((softplus(1000.0), softplus(-1000.0), silu(-1000.0), sigmoid(-1000.0)), (1000.0, 0.0, 0.0, 0.0));
        assert_eq!(softmax(array![1e308, 0.0].view()), array![1.0, 0.0]);
        assert!((log_softmax(array![1.0, 1.0].view())[0] + 2.0f64.ln()).abs() < 1e-15);
    }
}
