//! Groups of weights on their grids: exactness, error bounds, and choices against exhaustive ones.

use super::*;
use proptest::prelude::*;

fn back(grid: &Grid, group: &[f32]) -> Vec<f32> {
    group.iter().map(|&w| grid.value(grid.code(w))).collect()
}

fn squares(grid: &Grid, group: &[f32]) -> f64 {
    back(grid, group).iter().zip(group).map(|(b, w)| f64::from(b - w).powi(2)).sum()
}

#[test]
fn zero_and_tiny_groups_are_all_zero() {
    for width in [Width::Eight, Width::Four] {
        for group in [[0.0; 64], [1e-40; 64], [-1e-37; 64]] {
            let grid = width.best_grid(&group, None);
            assert_eq!(grid.scale.to_f32(), 0.0);
            assert!(back(&grid, &group).iter().all(|&w| w == 0.0));
            assert!((0..=15).contains(&grid.code(0.0)));
        }
    }
}

#[test]
fn weights_that_lie_on_a_grid_survive_exactly() {
    let scale = bf16::from_f32(0.0123).to_f32();
    // Codes that reach both ends fix the scale.
    let eight: Vec<f32> = [-127, 127].into_iter().chain(-31..31).map(|c| scale * c as f32).collect();
    assert_eq!(back(&Width::Eight.best_grid(&eight, None), &eight), eight);
    for zero in 0..=15 {
        let four: Vec<f32> = (0..64).map(|i| scale * (i % 16 - zero) as f32).collect();
        let grid = Width::Four.best_grid(&four, None);
        assert_eq!((back(&grid, &four), grid.zero), (four, zero));
    }
}

#[test]
fn a_group_of_one_sign_still_has_a_zero_point_among_its_codes() {
    for shift in [3.0, -3.0] {
        let group: Vec<f32> = (0..64).map(|i| shift + (i as f32).sin() / 10.0).collect();
        let grid = Width::Four.best_grid(&group, None);
        assert!((0..=15).contains(&grid.zero));
        assert!(back(&grid, &group).iter().zip(&group).all(|(b, w)| (b - w).abs() <= grid.scale.to_f32()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Half a step where nothing is clipped; what is clipped has an extreme code.
    #[test]
    fn every_weight_is_within_half_a_step_or_clipped_and_the_product_is_exact(group in prop::collection::vec(-3.0f32..3.0, 1..64)) {
        for width in [Width::Eight, Width::Four] {
            let grid = width.best_grid(&group, None);
            let (scale, zero) = (grid.scale.to_f32(), grid.zero);
            for &w in &group {
                let code = grid.code(w);
                prop_assert!((grid.low as i32..=grid.high as i32).contains(&code));
                let clipped = code as f32 == grid.low || code as f32 == grid.high;
                let steps = if clipped { 8.0 } else { 0.5001 };
                prop_assert!((w - grid.value(code)).abs() <= scale * steps);
                prop_assert_eq!(f64::from(grid.value(code)), f64::from(scale) * f64::from(code - zero));
            }
        }
    }

    #[test]
    fn no_clipping_free_grid_is_better_than_the_one_chosen(group in prop::collection::vec(-3.0f32..3.0, 2..64)) {
        let peak = group.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        let plain = Width::Eight.grid(at_least(peak / 127.0).unwrap(), 0);
        prop_assert!(squares(&Width::Eight.best_grid(&group, None), &group) <= squares(&plain, &group) * 1.0001);
        let (low, high) = group.iter().fold((0.0f32, 0.0f32), |(l, h), &w| (l.min(w), h.max(w)));
        let scale = at_least((high - low) / 15.0).unwrap();
        let plain = Width::Four.grid(scale, (-low / scale.to_f32()).round() as i32);
        prop_assert!(squares(&Width::Four.best_grid(&group, None), &group) <= squares(&plain, &group) * 1.0001);
    }

    #[test]
    fn importance_moves_error_away_from_what_matters(mut group in prop::collection::vec(-1.0f32..1.0, 16..64), at in 0usize..16) {
        group[(at + 1) % 16] = 4.0;
        let importance: Vec<f32> = (0..group.len()).map(|i| if i == at { 1e6 } else { 1.0 }).collect();
        let error = |grid: &Grid| f64::from(grid.value(grid.code(group[at])) - group[at]).abs();
        let (plain, weighted) = (Width::Four.best_grid(&group, None), Width::Four.best_grid(&group, Some(&importance)));
        prop_assert!(error(&weighted) <= error(&plain) * 1.0001 + 1e-6);
    }
}
