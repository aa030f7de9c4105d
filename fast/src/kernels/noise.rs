//! Gumbel noise of a position: `g = -log(-log(u))` with the counter-based uniforms of specdec and our own logarithm, so that
//! every device draws the same bits.

use super::lanes::{Kernel, Lanes};
use super::math::{log, log_lanes};
use super::pool::{Disjoint, Pool};
use specdec::philox::TokenNoise;

/// Tokens below which a second thread costs more than it brings.
const GRAIN: usize = 1 << 11;

/// The noise of one token.
pub fn gumbel_of(noise: TokenNoise, token: u32) -> f32 {
    0.0 - log(0.0 - log(noise.uniform(token)))
}

/// `out[t]` is the noise of token t, for all tokens from 0.
pub fn gumbel(pool: &Pool, noise: TokenNoise, out: &mut [f32]) {
    let tokens = out.len();
    let out = Disjoint::new(out);
    pool.split(tokens.div_ceil(4), GRAIN / 4, |_, range| {
        let (first, end) = (range.start * 4, tokens.min(range.end * 4));
        // SAFETY: parts own their tokens.
        let out = unsafe { out.slice(first, end - first) };
        for (out, block) in out.chunks_mut(4).zip(range.start as u32..) {
            out.copy_from_slice(&noise.block(block)[..out.len()]);
        }
        pool.vectorise(Gumbel(out));
    });
}

struct Gumbel<'a>(&'a mut [f32]);

impl Kernel for Gumbel<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let (n, x) = (self.0.len(), self.0.as_mut_ptr());
        let whole = n - n % L::WIDTH;
        // SAFETY: the caller's promise; indices stay inside.
        unsafe {
            for i in (0..whole).step_by(L::WIDTH) {
                let zero = L::splat(0.0);
                zero.sub(log_lanes(zero.sub(log_lanes(L::load(x.add(i)))))).store(x.add(i));
            }
            for i in whole..n {
                *x.add(i) = 0.0 - log_lanes(0.0 - log_lanes(*x.add(i)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_its_tokens_and_all_noise_is_finite() {
        let noise = TokenNoise::new(7, 11);
        for threads in [1, 3] {
            for tokens in [1, 5, 4099, 9000] {
                let mut row = vec![0.0; tokens];
                gumbel(&Pool::new(threads), noise, &mut row);
                assert!((0..).zip(&row).all(|(t, g)| g.is_finite() && g.to_bits() == gumbel_of(noise, t).to_bits()));
            }
        }
        assert!((0.0 - log(0.0 - log(1.0 - 2f32.powi(-24)))).is_finite() && (0.0 - log(0.0 - log(2f32.powi(-24)))).is_finite());
    }

    /// Mean and variance of a standard Gumbel: 0.5772 and pi^2 / 6; six standard errors of 200 000 draws.
    #[test]
    fn the_noise_is_gumbel() {
        let mut row = vec![0.0; 200_000];
        gumbel(&Pool::new(1), TokenNoise::new(3, 5), &mut row);
        let mean = row.iter().map(|&g| f64::from(g)).sum::<f64>() / row.len() as f64;
        let variance = row.iter().map(|&g| (f64::from(g) - mean).powi(2)).sum::<f64>() / row.len() as f64;
        assert!((mean - 0.5772).abs() < 6.0 * 1.283 / 447.0, "mean {mean}");
        assert!((variance - 1.6449).abs() < 6.0 * 3.46 / 447.0, "variance {variance}");
    }
}
