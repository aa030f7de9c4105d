//! Confidence of ratios by a bootstrap clustered by prompt, and the tail of chi-square for goodness of fit.
//! Knows sums per prompt, not what they count.

use crate::randomness::{below, stream};
use serde::Serialize;

/// A 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// 2.5 % point.
    pub low: f64,
    /// 97.5 % point.
    pub high: f64,
}

impl Interval {
    /// Half the width.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// True inside, ends included.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// Replicates of every bootstrap: the 2.5 % point then rests on 25 of them.
const REPLICATES: usize = 1000;

/// Prompts drawn with replacement, once for all figures of a comparison, so that differences are paired.
pub(crate) struct Resamples {
    counts: Vec<Vec<f64>>,
}

impl Resamples {
    pub(crate) fn new(prompts: usize, seed: u64) -> Self {
        let mut rng = stream(seed, u32::MAX, 0);
        let draw = |_| {
            let mut counts = vec![0.0; prompts];
            (0..prompts).for_each(|_| counts[below(&mut rng, prompts)] += 1.0);
            counts
        };
        Self { counts: (0..REPLICATES).map(draw).collect() }
    }

    /// Ratio of sums in every replicate; `None` with fewer than two prompts, whose spread nobody knows.
    pub(crate) fn ratios(&self, sums: &[(f64, f64)]) -> Option<Vec<f64>> {
        (sums.len() >= 2).then(|| {
            let ratio = |counts: &Vec<f64>| {
                let (a, b) = counts.iter().zip(sums).fold((0.0, 0.0), |(a, b), (c, s)| (a + c * s.0, b + c * s.1));
                a / b
            };
            self.counts.iter().map(ratio).collect()
        })
    }
}

/// The middle 95 % of replicates.
pub(crate) fn middle(mut replicates: Vec<f64>) -> Interval {
    replicates.sort_by(f64::total_cmp);
    let at = |share: f64| replicates[((replicates.len() - 1) as f64 * share).round() as usize];
    Interval { low: at(0.025), high: at(0.975) }
}

/// Probability that chi-square with `freedom` degrees exceeds `x`: the upper incomplete gamma function at half of both.
pub(crate) fn chi_square_tail(x: f64, freedom: usize) -> f64 {
    let (a, z) = (freedom as f64 / 2.0, x / 2.0);
    if z <= 0.0 {
        return 1.0;
    }
    let scale = (a * z.ln() - z - ln_gamma(a)).exp();
    if z < a + 1.0 {
        // Series of the lower function (Abramowitz and Stegun 6.5.29).
        let (mut term, mut sum) = (1.0 / a, 1.0 / a);
        for i in 1..500 {
            term *= z / (a + f64::from(i));
            sum += term;
        }
        1.0 - scale * sum
    } else {
        // Continued fraction of the upper one (6.5.31), from its far end.
        let fraction = (1..=200).rev().fold(0.0, |f, i| {
            let i = f64::from(i);
            i * (i - a) / (z - a + 2.0 * i + 1.0 - f)
        });
        scale / (z - a + 1.0 - fraction)
    }
}

/// Logarithm of the gamma function for `x > 0`: Stirling's series after shifting the argument to 8 or more: absolute error below 1e-12.
pub(crate) fn ln_gamma(x: f64) -> f64 {
    let (mut shifted, mut product) = (x, 1.0);
    while shifted < 8.0 {
        product *= shifted;
        shifted += 1.0;
    }
    let inverse = 1.0 / (shifted * shifted);
    let series =
        (1.0 / 12.0 - inverse * (1.0 / 360.0 - inverse * (1.0 / 1260.0 - inverse * (1.0 / 1680.0 - inverse / 1188.0)))) / shifted;
    (shifted - 0.5) * shifted.ln() - shifted + 0.5 * std::f64::consts::TAU.ln() + series - product.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Even degrees have the closed form exp(-z) * sum z^k / k!; odd ones are checked against tables (3.841 is the 95 % point
    /// of one degree, 11.070 of five).
    #[test]
    fn chi_square_tails_match_closed_forms_and_tables() {
        for freedom in [2usize, 4, 10, 30] {
            for x in [0.1, 1.0, 5.0, 20.0, 60.0] {
                let z: f64 = x / 2.0;
                let mut term = 1.0;
                let mut sum = 0.0;
                for k in 0..freedom / 2 {
                    sum += term;
                    term *= z / (k + 1) as f64;
                }
                assert!((chi_square_tail(x, freedom) - (-z).exp() * sum).abs() < 1e-10, "{freedom} {x}");
            }
        }
        assert!((chi_square_tail(3.841_459, 1) - 0.05).abs() < 1e-6);
        assert!((chi_square_tail(11.070_498, 5) - 0.05).abs() < 1e-6);
    }

    #[test]
    fn one_prompt_has_no_interval() {
        assert_eq!(Resamples::new(1, 0).ratios(&[(1.0, 2.0)]), None);
    }

    /// Rounds of a prompt are copies of each other: clustering must see 16 observations, not 16 000.
    #[test]
    fn the_interval_is_as_wide_as_prompts_differ() {
        let sums: Vec<(f64, f64)> = (0..16).map(|p| (1000.0 * (2.0 + f64::from(p % 4)), 1000.0)).collect();
        let interval = middle(Resamples::new(16, 3).ratios(&sums).unwrap());
        // Standard deviation of the mean: sqrt(1.25 / 16) = 0.28; 95 % half width 0.55.
        assert!((interval.half_width() - 0.55).abs() < 0.06, "{interval:?}");
        assert!(interval.contains(3.5));
    }
}
