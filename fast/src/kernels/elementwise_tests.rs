//! Elementwise kernels against the scalar functions, at every length around the vector width.

use super::*;
use crate::kernels::cases::{assert_bits, numbers, pools};
use crate::kernels::flush::FlushGuard;
use crate::kernels::math::{exp, sigmoid, silu, softplus};

#[test]
fn gates_biases_and_sums_equal_the_scalar_functions() {
    for pool in pools() {
        for (rows, dim) in [(1, 1), (1, 20_011), (3, 15), (5, 16), (2, 17), (33, 300)] {
            let (x, b, bias) = (numbers(rows * dim, 1), numbers(rows * dim, 2), numbers(dim, 3));
            let both = || x.iter().zip(&b);
            let _flush = FlushGuard::new();

            let mut y = x.clone();
            add(&pool, &mut y, &b);
            assert_bits(&y, &both().map(|(x, b)| x + b).collect::<Vec<_>>(), &pool, "add");

            let mut y = x.clone();
            add_bias(&pool, &mut y, &bias);
            assert_bits(&y, &x.iter().enumerate().map(|(i, x)| x + bias[i % dim]).collect::<Vec<_>>(), &pool, "add_bias");

            let mut y = x.clone();
            sigmoid_mul(&pool, &mut y, Layout::rows(rows, dim), &b, Layout::rows(rows, dim));
            assert_bits(&y, &both().map(|(x, b)| x * sigmoid(*b)).collect::<Vec<_>>(), &pool, "sigmoid_mul");

            let gate_up: Vec<f32> = x.chunks(dim).zip(b.chunks(dim)).flat_map(|(x, b)| [x, b].concat()).collect();
            let mut y = vec![f32::NAN; rows * dim];
            silu_mul(&pool, &gate_up, rows, &mut y);
            assert_bits(&y, &both().map(|(x, b)| silu(*x) * b).collect::<Vec<_>>(), &pool, "silu_mul");
        }
    }
}

#[test]
fn an_interleaved_gate_is_read_where_it_lies() {
    // Two heads of three channels: rows of [q q q g g g | q q q g g g].
    let fused = numbers(2 * 12, 5);
    let at = Layout { rows: 2, row_stride: 12, heads: 2, head_stride: 6, dim: 3 };
    for pool in pools() {
        let mut y = vec![1.0; 12];
        sigmoid_mul(&pool, &mut y, Layout::heads(2, 2, 3), &fused[3..], at);
        let want: Vec<f32> = fused.chunks(6).flat_map(|head| head[3..].iter().map(|&g| sigmoid(g))).collect();
        assert_bits(&y, &want, &pool, "gate");
    }
}

#[test]
fn the_delta_rules_gates_equal_the_scalar_functions() {
    for heads in [1, 4, 16, 19] {
        let (rows, stride) = (5, 2 * heads + 3);
        let (raw, a_log, dt_bias) = (numbers(rows * stride, 7), numbers(heads, 8), numbers(heads, 9));
        let neg_a: Vec<f32> = a_log.iter().map(|&a| -exp(a)).collect();
        for pool in pools() {
            let (mut alpha, mut beta) = (vec![f32::NAN; rows * heads], vec![f32::NAN; rows * heads]);
            let inputs = GateInputs { a: &raw[heads..], b: &raw, stride, rows };
            gdn_gates(&pool, GateWeights { neg_a: &neg_a, dt_bias: &dt_bias }, inputs, &mut alpha, &mut beta);
            let at = |i: usize| (i / heads * stride + i % heads, i % heads);
            let want_alpha = (0..rows * heads).map(|i| exp(neg_a[at(i).1] * softplus(raw[at(i).0 + heads] + dt_bias[at(i).1])));
            assert_bits(&alpha, &want_alpha.collect::<Vec<_>>(), &pool, "alpha");
            assert_bits(&beta, &(0..rows * heads).map(|i| sigmoid(raw[at(i).0])).collect::<Vec<_>>(), &pool, "beta");
            assert!(alpha.iter().all(|a| (0.0..=1.0).contains(a)));
        }
    }
}
