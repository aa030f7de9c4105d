//! Norms against their written order, and against f64.

use super::*;
use crate::kernels::cases::{assert_bits, numbers, pools};
use crate::kernels::math::silu;

/// 128 lanes, folded by halves.
fn squares(x: &[f32]) -> f32 {
    let mut lanes: Vec<f32> = (0..128).map(|j| x.iter().skip(j).step_by(128).fold(0f32, |s, x| x.mul_add(*x, s))).collect();
    while lanes.len() > 1 {
        let half = lanes.len() / 2;
        lanes = (0..half).map(|j| lanes[j] + lanes[j + half]).collect();
    }
    lanes[0]
}

fn rms(x: &[f32], scale: &[f32], eps: f32) -> Vec<f32> {
    let r = 1.0 / (squares(x) / x.len() as f32 + eps).sqrt();
    x.iter().zip(scale).map(|(x, s)| (x * r) * s).collect()
}

#[test]
fn norms_follow_their_order_at_every_dimension() {
    for dim in [1, 15, 16, 60, 127, 128, 129, 512, 1000] {
        let (rows, stride) = (4, 2 * dim + 3);
        let (x, delta, scale) = (numbers(rows * stride, 1), numbers(rows * dim, 2), numbers(dim, 3));
        let norm = Norm { scale: &scale, eps: 1e-6 };
        let at = Layout { rows, row_stride: stride, heads: 2, head_stride: dim, dim };
        let heads: Vec<&[f32]> = (0..rows * 2).map(|i| &x[at.range(i)]).collect();
        for pool in pools() {
            let mut y = vec![f32::NAN; rows * 2 * dim];
            rms_norm(&pool, &x, at, norm, &mut y);
            let want = heads.iter().flat_map(|x| rms(x, &scale, 1e-6)).collect::<Vec<_>>();
            assert_bits(&y, &want, &pool, "rms_norm");

            let mut z = x.clone();
            rms_norm_in_place(&pool, &mut z, at, norm);
            let got = (0..rows * 2).flat_map(|i| z[at.range(i)].to_vec()).collect::<Vec<_>>();
            assert_bits(&got, &want, &pool, "rms_norm_in_place");
            assert!((0..rows).all(|r| z[r * stride + 2 * dim..][..3] == x[r * stride + 2 * dim..][..3]), "gaps stay");

            let (mut stream, mut y) = (x[..rows * dim].to_vec(), vec![f32::NAN; rows * dim]);
            add_rms_norm(&pool, &mut stream, &delta, norm, &mut y);
            let sum: Vec<f32> = x.iter().zip(&delta).map(|(x, d)| x + d).collect();
            assert_bits(&stream, &sum, &pool, "stream");
            let want = sum.chunks(dim).flat_map(|x| rms(x, &scale, 1e-6)).collect::<Vec<_>>();
            assert_bits(&y, &want, &pool, "add_rms_norm");

            let mut o = delta.clone();
            gated_norm(&pool, &mut o, Layout::rows(rows, dim), norm, &x, Layout::rows(rows, dim).strided(stride));
            let row = |r: usize| {
                let y = rms(&delta[r * dim..][..dim], &scale, 1e-6);
                y.into_iter().zip(&x[r * stride..]).map(|(y, z)| y * silu(*z)).collect::<Vec<_>>()
            };
            assert_bits(&o, &(0..rows).flat_map(row).collect::<Vec<_>>(), &pool, "gated_norm");

            let mut l = delta.clone();
            l2_normalise(&pool, &mut l, Layout::rows(rows, dim), 0.125);
            let unit = |x: &[f32]| {
                let r = 1.0 / (squares(x) + 1e-6).sqrt();
                x.iter().map(|x| (x * r) * 0.125).collect::<Vec<_>>()
            };
            assert_bits(&l, &delta.chunks(dim).flat_map(unit).collect::<Vec<_>>(), &pool, "l2_normalise");
        }
    }
}

#[test]
fn the_sum_of_squares_is_within_rounding_of_the_exact_one() {
    for n in [512, 4096] {
        let x = numbers(n, 4);
        let exact: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
        // n / 128 roundings in a lane and 7 in the fold, each at most half a unit.
        let bound = (n as f64 / 128.0 + 7.0) * 2f64.powi(-24);
        assert!((f64::from(squares(&x)) / exact - 1.0).abs() < bound);
    }
}
