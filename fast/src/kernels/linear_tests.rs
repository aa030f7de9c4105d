//! Linear against its written order in plain Rust, for every storage, instruction set, thread count and row count.

use super::*;
use crate::kernels::cases::{assert_bits, numbers, pools};
use crate::kernels::flush::FlushGuard;
use crate::kernels::pack::PackError;
use half::{bf16, f16};
use proptest::prelude::*;

/// The law: chunks of 128 inputs, each a chain from 0.
fn law(w: &[f32], x: &[f32], rows: usize, outputs: usize, inputs: usize) -> Vec<f32> {
    let _flush = FlushGuard::new();
    let mut y = Vec::with_capacity(rows * outputs);
    for row in x.chunks(inputs) {
        for w in w.chunks(inputs) {
            let sums = row.chunks(128).zip(w.chunks(128)).map(|(x, w)| x.iter().zip(w).fold(0f32, |s, (x, w)| w.mul_add(*x, s)));
            y.push(sums.reduce(|y, partial| y + partial).unwrap());
        }
    }
    y
}

/// All storages of one random matrix with the f32 weights they stand for.
fn storages(outputs: usize, inputs: usize, group: usize, seed: u32) -> Vec<(Packed, Vec<f32>)> {
    let w = numbers(outputs * inputs, seed);
    let b: Vec<_> = w.iter().map(|&w| bf16::from_f32(w)).collect();
    let h: Vec<_> = w.iter().map(|&w| f16::from_f32(w * 1e-3)).collect();
    let groups = inputs.div_ceil(group);
    let scales: Vec<_> = numbers(outputs * groups, seed + 1).into_iter().map(bf16::from_f32).collect();
    let codes: Vec<i8> = w.iter().map(|w| (w * 127.0) as i8).collect();
    let q = (0..outputs * inputs).map(|i| scales[i / inputs * groups + i % inputs / group].to_f32() * f32::from(codes[i]));
    vec![
        (Packed::from_bf16(&b, outputs, inputs).unwrap(), b.iter().map(|b| b.to_f32()).collect()),
        (Packed::from_f16(&h, outputs, inputs).unwrap(), h.iter().map(|h| h.to_f32()).collect()),
        (Packed::from_q8(&codes, &scales, (outputs, inputs), group).unwrap(), q.collect()),
        (Packed::from_f32(&w, outputs, inputs).unwrap(), w),
    ]
}

fn check(outputs: usize, inputs: usize, rows: usize, group: usize, seed: u32) {
    let x = numbers(rows * inputs, seed + 7);
    for (packed, w) in storages(outputs, inputs, group, seed) {
        let want = law(&w, &x, rows, outputs, inputs);
        for pool in pools() {
            let mut y = vec![f32::NAN; rows * outputs];
            linear(&pool, &packed, &x, rows, &mut y, &mut Activations::default());
            assert_bits(&y, &want, &pool, &format!("{outputs}x{inputs}, {rows} rows, group {group}"));
        }
        let mut row = vec![0.0; inputs];
        packed.row(outputs - 1, &mut row);
        assert_bits(&row, &w[(outputs - 1) * inputs..], &Pool::new(1), "last row");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_storage_width_and_thread_count_gives_the_law(
        outputs in 1usize..130, inputs in 1usize..300, rows in 1usize..=33, group in prop::sample::select(vec![32, 64, 100, 128]), seed: u16,
    ) {
        check(outputs, inputs, rows, group, u32::from(seed));
    }
}

#[test]
fn every_row_count_gives_the_rows_alone() {
    let (outputs, inputs) = (97, 320);
    let x = numbers(33 * inputs, 3);
    let pool = Pool::new(2);
    for (packed, _) in storages(outputs, inputs, 64, 4) {
        let mut alone = vec![0.0; 33 * outputs];
        for (x, y) in x.chunks(inputs).zip(alone.chunks_mut(outputs)) {
            linear(&pool, &packed, x, 1, y, &mut Activations::default());
        }
        for rows in 1..=33 {
            let mut y = vec![0.0; rows * outputs];
            linear(&pool, &packed, &x[..rows * inputs], rows, &mut y, &mut Activations::default());
            assert_bits(&y, &alone[..rows * outputs], &pool, &format!("{rows} rows"));
        }
    }
}

#[test]
fn stacked_matrices_equal_the_matrices_apart_and_nothing_is_written_beyond() {
    let (inputs, rows) = (130, 5);
    let x = numbers(rows * inputs, 9);
    let pool = Pool::new(2);
    let apart: Vec<_> = [33, 64, 1].into_iter().zip(0..).map(|(o, s)| storages(o, inputs, 64, s).remove(s as usize)).collect();
    let stacked = Packed::concat_rows(apart.iter().map(|(p, _)| p.clone()).collect()).unwrap();
    assert_eq!(stacked.outputs(), 98);
    let mut y = vec![7.0; rows * 98 + 8];
    linear(&pool, &stacked, &x, rows, &mut y[..rows * 98], &mut Activations::default());
    assert_eq!(y[rows * 98..], [7.0; 8]);
    let mut first = 0;
    for (packed, w) in &apart {
        let n = packed.outputs();
        let want = law(w, &x, rows, n, inputs);
        for r in 0..rows {
            assert_bits(&y[r * 98 + first..][..n], &want[r * n..][..n], &pool, "stacked");
        }
        let (mut a, mut b) = (vec![0.0; inputs], vec![0.0; inputs]);
        stacked.row(first + n - 1, &mut a);
        packed.row(n - 1, &mut b);
        assert_eq!(a, b);
        first += n;
    }
}

#[test]
fn numbers_that_are_no_matrix_are_refused() {
    let text = |r: Result<Packed, PackError>| r.err().unwrap().to_string();
    assert_eq!(text(Packed::from_f32(&[0.0; 5], 2, 3)), "a matrix of 2 by 3 has 5 elements, expected the product");
    assert_eq!(text(Packed::from_f32(&[], 0, 3)), "a matrix of 0 outputs and 3 inputs is empty");
    assert!(Packed::from_f32(&[0.0; 5], usize::MAX, 3).is_err());
    assert!(Packed::from_q8(&[0; 6], &[bf16::ONE; 2], (2, 3), 0).is_err());
    assert!(Packed::from_q8(&[0; 6], &[bf16::ONE; 3], (2, 3), 64).is_err());
    let (a, b) = (Packed::from_f32(&[0.0; 6], 2, 3).unwrap(), Packed::from_f32(&[0.0; 4], 2, 2).unwrap());
    assert_eq!(text(Packed::concat_rows(vec![a, b])), "a stacked matrix has 2 inputs, expected 3 as in the first");
    assert!(Packed::concat_rows(vec![]).is_err());
}
