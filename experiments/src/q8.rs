//! The q8 scheme: 8-bit symmetric codes with a bf16 scale per group of 64 inputs (docs/formats.md).
//! One row in, its codes and scales out. Knows nothing of files.

use half::bf16;

/// Inputs that share a scale.
pub const GROUP: usize = 64;
/// Largest code; -128 is not used, so that a weight and its negative are equally representable.
const MAX_CODE: f32 = 127.0;

/// Appends the codes (one per weight) and the scales (one per group; the last group may be short) of one row.
///
/// A group's scale is one of the two bf16 neighbours of `max |w| / 127`: the one with the smaller squared error, the
/// larger at a tie. Codes are `w / scale` rounded half to even and clamped to -127..=127 (the lower neighbour can ask
/// for 128). A group whose scale would be below the smallest normal bf16 has scale 0 and codes 0.
pub fn quantise_row(row: &[f32], codes: &mut Vec<i8>, scales: &mut Vec<bf16>) {
    for group in row.chunks(GROUP) {
        let scale = best_scale(group);
        scales.push(scale);
        codes.extend(group.iter().map(|&w| code(w, scale.to_f32())));
    }
}

fn code(weight: f32, scale: f32) -> i8 {
    if scale == 0.0 { 0 } else { (weight / scale).round_ties_even().clamp(-MAX_CODE, MAX_CODE) as i8 }
}

fn best_scale(group: &[f32]) -> bf16 {
    let exact = group.iter().fold(0.0f32, |m, w| m.max(w.abs())) / MAX_CODE;
    let lower = bf16::from_bits((exact.to_bits() >> 16) as u16);
    if lower < bf16::MIN_POSITIVE {
        return bf16::ZERO;
    }
    let upper = if lower.to_f32() == exact { lower } else { bf16::from_bits(lower.to_bits() + 1) };
    let error = |scale: bf16| -> f64 {
        let scale = scale.to_f32();
        group.iter().map(|&w| (f64::from(w) - f64::from(scale) * f64::from(code(w, scale))).powi(2)).sum()
    };
    if error(lower) < error(upper) { lower } else { upper }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quantised(row: &[f32]) -> (Vec<i8>, Vec<bf16>) {
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        quantise_row(row, &mut codes, &mut scales);
        (codes, scales)
    }

    #[test]
    fn zero_and_tiny_groups_are_all_zero_and_ragged_ends_have_a_scale() {
        let mut row = vec![0.0; 64];
        row.extend([1e-40; 64]);
        row.extend([0.5, -1.0]);
        let (codes, scales) = quantised(&row);
        assert_eq!((codes.len(), scales.len()), (130, 3));
        assert!(codes[..128].iter().all(|&c| c == 0) && scales[..2].iter().all(|s| s.to_f32() == 0.0));
        assert!((-127..=-126).contains(&codes[129]), "{}", codes[129]);
    }

    #[test]
    fn weights_that_are_multiples_of_a_bf16_scale_survive_exactly() {
        let scale = bf16::from_f32(0.0123).to_f32();
        // Every group has a code of 127, which fixes its scale.
        let group = |first: i32| std::iter::once(127).chain(first..first + 63);
        let row: Vec<f32> = [-127, -64, 0, 64].into_iter().flat_map(group).map(|c| scale * c as f32).collect();
        let (codes, scales) = quantised(&row);
        for (i, &w) in row.iter().enumerate() {
            assert_eq!(scales[i / GROUP].to_f32() * f32::from(codes[i]), w, "weight {i}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

        /// Half a step; a whole one where the lower neighbour of the scale clamps the largest weight.
        #[test]
        fn every_weight_is_within_a_step_and_the_product_is_exact(row in prop::collection::vec(-3.0f32..3.0, 1..200)) {
            let (codes, scales) = quantised(&row);
            for (i, &w) in row.iter().enumerate() {
                let (code, scale) = (codes[i], scales[i / GROUP].to_f32());
                prop_assert!((-127..=127).contains(&code));
                let steps = if code.abs() == 127 { 1.0 } else { 0.5001 };
                prop_assert!((w - scale * f32::from(code)).abs() <= steps * scale);
                prop_assert_eq!(f64::from(scale * f32::from(code)), f64::from(scale) * f64::from(code));
            }
        }

        #[test]
        fn the_scale_is_the_better_of_the_two_neighbours(row in prop::collection::vec(-3.0f32..3.0, 1..64)) {
            let exact = row.iter().fold(0.0f32, |m, w| m.max(w.abs())) / 127.0;
            let error = |scale: f32| -> f64 {
                row.iter().map(|&w| (w / scale).round_ties_even().clamp(-127.0, 127.0) * scale)
                    .zip(&row).map(|(back, &w)| (f64::from(back) - f64::from(w)).powi(2)).sum()
            };
            let near: Vec<f32> = (0..=0x7f7f).map(|bits| bf16::from_bits(bits).to_f32()).collect();
            let upper = near.partition_point(|&s| s < exact);
            let (lower, upper) = (near[upper - usize::from(near[upper] != exact)], near[upper]);
            let scale = quantised(&row).1[0].to_f32();
            prop_assert!(scale == lower || scale == upper);
            prop_assert_eq!(error(scale), error(lower).min(error(upper)));
        }
    }
}
