//! Counter-based randomness: Philox4x32-10 (Salmon et al., SC 2011), keyed by the seed, counted by absolute position.
//! The noise of a token at a position is a pure function of (seed, position, token), whoever asks and in which order.
//! Gives uniforms only: the logarithms of Gumbel noise belong to the engines.

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds of Philox4x32.
pub fn philox4x32(mut key: [u32; 2], mut counter: [u32; 4]) -> [u32; 4] {
    for _ in 0..10 {
        let a = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// The uniform of a 32-bit word: `((word >> 9) + 1/2) / 2^23`, exact in f32 and strictly inside (0, 1).
pub fn uniform(word: u32) -> f32 {
    ((word >> 9) as f32 + 0.5) * (1.0 / 8_388_608.0)
}

/// The noise of one position: every token id has one uniform.
///
/// Seed and position enter through different inputs of the cipher (key and counter), so neighbouring seeds do not give
/// shifted copies of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenNoise {
    key: [u32; 2],
    position: [u32; 2],
}

impl TokenNoise {
    /// `position` is the absolute position that the chosen token will occupy.
    pub fn new(seed: u64, position: u64) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], position: [position as u32, (position >> 32) as u32] }
    }

    /// The uniforms of tokens `4 * block` to `4 * block + 3`.
    pub fn block(&self, block: u32) -> [f32; 4] {
        philox4x32(self.key, [block, self.position[0], self.position[1], 0]).map(uniform)
    }

    /// The uniform of one token.
    pub fn uniform(&self, token: u32) -> f32 {
        self.block(token / 4)[(token % 4) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32([0; 2], [0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox4x32([u32::MAX; 2], [u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(
            philox4x32([0xa409_3822, 0x299f_31d0], [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn edge_words_stay_inside_the_open_interval() {
        assert_eq!(uniform(0), 2f32.powi(-24));
        assert_eq!(uniform(u32::MAX), 1.0 - 2f32.powi(-24));
        for word in [0, u32::MAX] {
            assert!((-(-uniform(word).ln()).ln()).is_finite());
        }
    }

    #[test]
    fn neighbouring_seeds_are_not_shifted_copies() {
        let draw = |seed, position| (0..64).map(|t| TokenNoise::new(seed, position).uniform(t)).collect::<Vec<_>>();
        for shift in 0..4u64 {
            for (a, b) in [(draw(7, 10 + shift), draw(8, 10)), (draw(7, 10), draw(8, 10 + shift))] {
                let same = a.iter().zip(&b).filter(|(x, y)| x == y).count();
                assert!(same <= 1, "seeds 7 and 8 share {same} of 64 uniforms at shift {shift}");
            }
        }
        assert_ne!(draw(7, 10), draw(7 + (1 << 32), 10));
        assert_ne!(draw(7, 10), draw(7, 10 + (1 << 32)));
    }

    /// Kolmogorov-Smirnov at 100 000 draws: the 1e-6 quantile of the statistic is 2.69 / sqrt(n).
    #[test]
    fn uniforms_are_uniform_over_positions_and_tokens() {
        let mut draws: Vec<f32> = (0..1000).flat_map(|p| (0..25).flat_map(move |b| TokenNoise::new(3, p).block(b))).collect();
        draws.sort_by(f32::total_cmp);
        let n = draws.len() as f64;
        let gap = draws.iter().enumerate().map(|(i, &u)| (f64::from(u) - (i as f64 + 0.5) / n).abs()).fold(0.0, f64::max);
        assert!(gap < 2.69 / n.sqrt(), "largest gap {gap}");
    }
}
