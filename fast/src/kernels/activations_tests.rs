//! Activations against their written rule in plain Rust, for every instruction set and thread count, and against f64.

use super::*;
use crate::kernels::cases::{assert_bits, numbers, pools};
use proptest::prelude::*;

/// The law: signs, butterflies, then per group the scale `max / 127` and codes `x * (127 / max)`, ties to even.
fn law(x: &[f32], group: usize, signs: Option<&[i8]>) -> (Vec<f32>, Vec<i8>, Vec<f32>) {
    let _flush = FlushGuard::new();
    let mut x = x.to_vec();
    if let Some(signs) = signs {
        for (x, d) in x.chunks_exact_mut(32).zip(signs.chunks_exact(32)) {
            for i in 0..32 {
                x[i] *= f32::from(d[i]);
            }
            for s in [1, 2, 4, 8, 16] {
                for i in (0..32).filter(|i| i & s == 0) {
                    (x[i], x[i + s]) = (x[i] + x[i + s], x[i] - x[i + s]);
                }
            }
        }
    }
    let (mut codes, mut scales) = (vec![], vec![]);
    for x in x.chunks(group) {
        let max = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        let zero = max < 2f32.powi(-100);
        let inverse = 127.0 / max;
        codes.extend(x.iter().map(|x| if zero { 0 } else { (x * inverse).round_ties_even() as i8 }));
        codes.resize(codes.len().next_multiple_of(group), 0);
        scales.push(if zero { 0.0 } else { max / 127.0 });
    }
    (x, codes, scales)
}

fn check(rows: usize, inputs: usize, group: usize, x: &[f32], rotated: bool) {
    let stored = specdec::hadamard::signs(inputs);
    let signs = rotated.then(|| Signs::new(&stored).unwrap());
    let laws: Vec<_> = x.chunks(inputs).map(|x| law(x, group, rotated.then_some(&stored))).collect();
    for pool in pools() {
        let what = format!("{rows} rows of {inputs}, group {group}, rotated {rotated}");
        let mut scratch = Activations::default();
        let found = scratch.codes.quantise(&pool, x, (rows, inputs), group, signs.as_ref());
        assert_eq!(found.codes, laws.iter().flat_map(|l| l.1.clone()).collect::<Vec<_>>(), "{what}, {:?}", pool.isa());
        assert_bits(found.scales, &laws.iter().flat_map(|l| l.2.clone()).collect::<Vec<_>>(), &pool, &what);
        let totals: Vec<i32> = found.codes.chunks(group).map(|c| c.iter().map(|&c| i32::from(c)).sum()).collect();
        assert_eq!(found.totals, totals, "{what}");
        if let Some(signs) = &signs {
            let turned = scratch.rotated.rotate(&pool, x, rows, signs);
            assert_bits(turned, &laws.iter().flat_map(|l| l.0.clone()).collect::<Vec<_>>(), &pool, &what);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_instruction_set_gives_the_laws_codes(
        rows in 1usize..40, inputs in 1usize..300, group in prop::sample::select(vec![32, 64, 128]), seed: u16, rotated: bool,
    ) {
        check(rows, inputs, group, &numbers(rows * inputs, u32::from(seed)), rotated);
    }
}

#[test]
fn ties_go_to_even_and_tiny_groups_are_zero() {
    let mut x = vec![0.0; 192];
    // With a largest value of 127 the codes are the rounded values themselves.
    x[0] = 127.0;
    for (i, x) in x[1..64].iter_mut().enumerate() {
        *x = i as f32 - 31.5;
    }
    x[64..128].fill(2f32.powi(-101));
    x[130] = -1e-30;
    check(1, 192, 64, &x, false);
    let mut scratch = Activations::default();
    let found = scratch.codes.quantise(&Pool::new(1), &x, (1, 192), 64, None);
    assert_eq!(found.codes[1..6], [-32, -30, -30, -28, -28]);
    assert_eq!((found.scales[1], found.codes[64], found.codes[130]), (0.0, 0, -127));
}

/// The transform of f32 against the definition in f64.
#[test]
fn the_transform_is_specdecs() {
    let (inputs, pool) = (200, Pool::new(2));
    let (x, stored) = (numbers(inputs, 8), specdec::hadamard::signs(inputs));
    let mut exact: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    specdec::hadamard::forward(&mut exact, &stored);
    let signs = Signs::new(&stored).unwrap();
    let mut scratch = Activations::default();
    let turned = scratch.rotated.rotate(&pool, &x, 1, &signs);
    assert!(turned.iter().zip(&exact).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5));
    let mut folded: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    specdec::hadamard::fold_row(&mut folded, &stored);
    let mut back: Vec<f32> = folded.iter().map(|&w| w as f32).collect();
    signs.unfold(&mut back);
    assert!(back.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-6));
    assert_eq!(Signs::new(&[1, 0]), None);
}
