//! Rounding with error feedback (LDLQ, arXiv 2307.13304 section 3.1; the same result as GPTQ, arXiv 2210.17323): codes are
//! chosen input by input, and what rounding did to one input is made up for by the inputs after it, as far as calibration
//! activations say that they vary together. Knows rows, a Gram matrix and grids; nothing of models or files.

use super::codes::{Grid, Width};
use anyhow::{Result, ensure};

/// How the error of one input moves the targets of later ones.
///
/// With the Gram matrix `G = X^T X = M M^T`, M upper triangular, the squared error of outputs is `|(W - Q) M|^2`, and its
/// column `k` is `M_kk (w_k - q_k + sum over j < k of (w_j - q_j) M_jk / M_kk)`: rounding the bracket makes it small.
pub struct Feedback {
    /// Row `j`: `M_jk / M_kk` for k = j + 1 ..
    factors: Vec<Vec<f32>>,
    /// `M_kk^2`: what a squared error of input k costs when all before it are settled.
    importance: Vec<f32>,
}

impl Feedback {
    /// `gram`: `[n, n]` row-major, symmetric; destroyed. `damping`: share of the mean diagonal that is added to the diagonal,
    /// so that rare directions do not get arbitrary factors.
    ///
    /// Errors: activations that are not finite.
    pub fn new(mut gram: Vec<f64>, inputs: usize, damping: f64) -> Result<Self> {
        let n = inputs;
        let mean = (0..n).map(|i| gram[i * n + i]).sum::<f64>() / n as f64;
        ensure!(mean.is_finite(), "calibration activations sum to {mean}, expected finite numbers");
        // A layer that calibration never excited has nothing to say: all inputs are alike.
        let damp = if mean > 0.0 { damping * mean } else { 1.0 };
        for i in 0..n {
            gram[i * n + i] += damp;
        }
        factorise(&mut gram, n);
        let diagonal: Vec<f64> = (0..n).map(|i| gram[i * n + i]).collect();
        let factors = (0..n).map(|j| (j + 1..n).map(|k| (gram[j * n + k] / diagonal[k]) as f32).collect()).collect();
        Ok(Self { factors, importance: diagonal.iter().map(|d| (d * d) as f32).collect() })
    }

    /// Codes and grids of several rows, `[rows, n]` each; grids `[rows, ceil(n / group)]`.
    pub fn quantise(&self, weights: &[f32], width: Width, group: usize) -> (Vec<i32>, Vec<Grid>) {
        let n = self.factors.len();
        let (rows, groups) = (weights.len() / n, n.div_ceil(group));
        let mut targets = weights.to_vec();
        let mut codes = vec![0; weights.len()];
        let mut grids: Vec<Grid> = Vec::with_capacity(rows * groups);
        let mut current = Vec::with_capacity(rows);
        for (j, factors) in self.factors.iter().enumerate() {
            if j % group == 0 {
                let end = (j + group).min(n);
                let grid = |r: usize| width.best_grid(&targets[r * n..][j..end], Some(&self.importance[j..end]));
                current = (0..rows).map(grid).collect();
                grids.extend(&current);
            }
            for (r, grid) in current.iter().enumerate() {
                let code = grid.code(targets[r * n + j]);
                codes[r * n + j] = code;
                let error = weights[r * n + j] - grid.value(code);
                for (target, factor) in targets[r * n + j + 1..(r + 1) * n].iter_mut().zip(factors) {
                    *target += error * factor;
                }
            }
        }
        // Made group by group, wanted row by row.
        let by_row = (0..rows).flat_map(|r| (0..groups).map(move |g| g * rows + r)).map(|i| grids[i]).collect();
        (codes, by_row)
    }
}

/// `G = M M^T` in place, M upper triangular: Cholesky from the last input to the first. Entries below the diagonal are left.
fn factorise(g: &mut [f64], n: usize) {
    for j in (0..n).rev() {
        let (above, row) = g.split_at_mut(j * n);
        let (done, row_j) = (j + 1..n, &mut row[..n]);
        let square: f64 = row_j[done.clone()].iter().map(|m| m * m).sum();
        // Rounding can leave a hair below zero where damping is small against the largest direction.
        let pivot = (row_j[j] - square).max(f64::EPSILON * row_j[j]).sqrt();
        row_j[j] = pivot;
        let row_j = &row_j[done.clone()];
        let solve = |rows: &mut [f64]| {
            for row in rows.chunks_exact_mut(n) {
                row[j] = (row[j] - dot(&row[done.clone()], row_j)) / pivot;
            }
        };
        // Threads pay for themselves when the dot products of a column are long.
        if j * (n - j) < 1 << 20 {
            solve(above);
            continue;
        }
        let part = j.div_ceil(super::threads()) * n;
        std::thread::scope(|scope| above.chunks_mut(part).for_each(|rows| drop(scope.spawn(|| solve(rows)))));
    }
}

/// Eight partial sums, which vector units can hold.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let tail = a.len() / 8 * 8;
    sums.iter().sum::<f64>() + a[tail..].iter().zip(&b[tail..]).map(|(a, b)| a * b).sum::<f64>()
}

#[cfg(test)]
#[path = "feedback_tests.rs"]
mod tests;
