//! Reductions against plain Rust, with ties, infinities and NaN.

use super::*;
use crate::kernels::cases::{assert_bits, numbers, pools};
use crate::kernels::math::exp;

#[test]
fn the_first_of_the_largest_wins() {
    for width in [1, 15, 64, 65, 1000] {
        let mut x = numbers(5 * width, 1);
        x[width..2 * width].fill(-1.5);
        x[2 * width..3 * width].fill(f32::NAN);
        x[3 * width..4 * width].fill(f32::NEG_INFINITY);
        x[5 * width - 1] = 100.0;
        let first = x[..width].iter().enumerate().fold((0, x[0]), |best, (i, &x)| if x > best.1 { (i, x) } else { best }).0;
        for pool in pools() {
            let mut ids = [9; 5];
            argmax(&pool, &x, width, &mut ids);
            assert_eq!(ids, [first as u32, 0, 0, 0, width as u32 - 1], "{:?}", pool.isa());
        }
    }
}

#[test]
fn log_sum_exp_follows_its_order_and_is_near_the_exact_one() {
    for width in [1, 127, 128, 1000, 8192] {
        let x: Vec<f32> = numbers(3 * width, 2).iter().map(|x| 5.0 * x + 30.0).collect();
        let law = |x: &[f32]| {
            let m = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut lanes: Vec<f32> = (0..128).map(|j| x.iter().skip(j).step_by(128).fold(0f32, |s, x| s + exp(x - m))).collect();
            while lanes.len() > 1 {
                let half = lanes.len() / 2;
                lanes = (0..half).map(|j| lanes[j] + lanes[j + half]).collect();
            }
            m + log(lanes[0])
        };
        let want: Vec<f32> = x.chunks(width).map(law).collect();
        for pool in pools() {
            let mut out = [0.0; 3];
            log_sum_exp(&pool, &x, width, &mut out);
            assert_bits(&out, &want, &pool, "log_sum_exp");
        }
        let exact = x[..width].iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        assert!((f64::from(want[0]) - exact).abs() < 1e-5, "{} for {exact}", want[0]);
    }
}

#[test]
fn the_k_largest_are_those_of_a_stable_sort() {
    for n in [1, 63, 64, 200, 3000] {
        let mut x: Vec<f32> = numbers(n, 3).iter().map(|x| (x * 20.0).round()).collect();
        x[n / 2] = -0.0;
        let mut sorted: Vec<(u32, f32)> = (0..).zip(x.iter().copied()).collect();
        sorted.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap());
        for pool in pools() {
            for k in [0, 1, 2, 16, 40, 5000] {
                let mut out = vec![(0, 0.0); k];
                let found = top_k(&pool, &x, &mut out);
                assert_eq!(found, k.min(n));
                assert_eq!(out[..found], sorted[..found], "{k} of {n}, {:?}", pool.isa());
            }
        }
        x.iter_mut().step_by(3).for_each(|x| *x = f32::NAN);
        let numbers = x.iter().filter(|x| !x.is_nan()).count();
        assert_eq!(top_k(&Pool::new(1), &x, &mut vec![(0, 0.0); n]), numbers);
    }
}
