//! Products of codes against the written order in plain Rust, and against the exact product in f64, for every instruction
//! set, thread count and row count, at shapes beside the block sizes.

use crate::kernels::activations::Activations;
use crate::kernels::cases::{assert_bits, numbers, pools};
use crate::kernels::flush::FlushGuard;
use crate::kernels::linear::linear;
use crate::kernels::pool::Pool;
use crate::kernels::{Packed, Signs};
use half::bf16;
use proptest::prelude::*;

/// A matrix of codes as a file holds it: `scale * (code - zero)`, L with zero 0.
struct Stored {
    outputs: usize,
    inputs: usize,
    group: usize,
    codes: Vec<i32>,
    zeros: Vec<i32>,
    scales: Vec<bf16>,
    signs: Option<Vec<i8>>,
    four: bool,
}

impl Stored {
    fn random((outputs, inputs): (usize, usize), group: usize, seed: u32, four: bool, rotated: bool) -> Self {
        let groups = inputs.div_ceil(group);
        let words = |n, seed| numbers(n, seed).into_iter().map(|x| x.to_bits() / 7);
        // Half of the codes are extremes, so that sums reach their bounds.
        let code = |w: u32| match (four, w % 4) {
            (false, 0 | 1) => (w / 4 % 255) as i32 - 127,
            (false, side) => {
                if side == 2 {
                    127
                } else {
                    -127
                }
            }
            (true, 0 | 1) => (w / 4 % 16) as i32,
            (true, side) => {
                if side == 2 {
                    15
                } else {
                    0
                }
            }
        };
        Self {
            outputs,
            inputs,
            group,
            codes: words(outputs * inputs, seed).map(code).collect(),
            zeros: words(outputs * groups, seed + 1).map(|w| if four { (w % 16) as i32 } else { 0 }).collect(),
            scales: numbers(outputs * groups, seed + 2).into_iter().map(|x| bf16::from_f32(x * 0.01)).collect(),
            signs: rotated.then(|| specdec::hadamard::signs(inputs)),
            four,
        }
    }

    fn packed(&self) -> Packed {
        let shape = (self.outputs, self.inputs);
        let signs = self.signs.as_ref().map(|s| Signs::new(s).unwrap());
        if self.four {
            let halves =
                |row: &[i32]| row.chunks(2).map(|p| p[0] as u8 | (p.get(1).map_or(0, |&p| p as u8) << 4)).collect::<Vec<_>>();
            let codes: Vec<u8> = self.codes.chunks(self.inputs).flat_map(halves).collect();
            let zeros: Vec<u8> = self.zeros.chunks(self.inputs.div_ceil(self.group)).flat_map(halves).collect();
            Packed::from_m((&codes, &self.scales, &zeros), shape, self.group, signs.as_ref()).unwrap()
        } else {
            let codes: Vec<i8> = self.codes.iter().map(|&c| c as i8).collect();
            Packed::from_l(&codes, &self.scales, shape, self.group, signs.as_ref()).unwrap()
        }
    }

    /// Group, scale and `code - zero` of a weight.
    fn weight(&self, o: usize, k: usize) -> (f32, i32) {
        let at = o * self.inputs.div_ceil(self.group) + k / self.group;
        (self.scales[at].to_f32(), self.codes[o * self.inputs + k] - self.zeros[at])
    }

    /// The law: exact integers of groups, chunks of 1024 inputs. (The activations have their own tests.)
    fn law(&self, x: &[f32], rows: usize) -> Vec<f32> {
        let _flush = FlushGuard::new();
        let signs = self.signs.as_ref().map(|s| Signs::new(s).unwrap());
        let (groups, mut scratch) = (self.inputs.div_ceil(self.group), Activations::default());
        let x = scratch.codes.quantise(&Pool::new(1), x, (rows, self.inputs), self.group, signs.as_ref());
        let mut y = vec![];
        for r in 0..rows {
            for o in 0..self.outputs {
                let mut chunks = vec![];
                for first in (0..groups).step_by(1024 / self.group) {
                    let mut c = 0f32;
                    for g in first..groups.min(first + 1024 / self.group) {
                        let inputs = g * self.group..self.inputs.min((g + 1) * self.group);
                        let row = &x.codes[r * groups * self.group..];
                        let sum: i64 = inputs.clone().map(|k| i64::from(self.weight(o, k).1) * i64::from(row[k])).sum();
                        let p = x.scales[r * groups + g] * self.weight(o, inputs.start).0;
                        c = (sum as f32).mul_add(p, c);
                    }
                    chunks.push(c);
                }
                y.push(chunks.into_iter().reduce(|y, c| y + c).unwrap());
            }
        }
        y
    }

    /// The row of W in the basis of the inputs.
    fn row(&self, o: usize) -> Vec<f64> {
        let weight = |k| {
            let (scale, code) = self.weight(o, k);
            f64::from(scale) * f64::from(code)
        };
        let mut row: Vec<f64> = (0..self.inputs).map(weight).collect();
        if let Some(signs) = &self.signs {
            specdec::hadamard::unfold_row(&mut row, signs);
        }
        row
    }
}

fn check(stored: &Stored, rows: usize, seed: u32) {
    let x = numbers(rows * stored.inputs, seed + 7);
    let (packed, want) = (stored.packed(), stored.law(&x, rows));
    let (outputs, inputs) = (stored.outputs, stored.inputs);
    for pool in pools() {
        let mut y = vec![f32::NAN; rows * outputs];
        linear(&pool, &packed, &x, rows, &mut y, &mut Activations::default());
        assert_bits(&y, &want, &pool, &format!("{outputs}x{inputs}, {rows} rows, group {}, M {}", stored.group, stored.four));
    }
    let mut row = vec![0.0; inputs];
    for o in [0, outputs / 2, outputs - 1] {
        packed.row(o, &mut row);
        let (want, scale) = (stored.row(o), 0.01 * 8.0 * 254.0 * 32.0);
        assert!(row.iter().zip(&want).all(|(a, b)| (f64::from(*a) - b).abs() < scale * 1e-6), "row {o}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_instruction_set_width_and_thread_count_gives_the_law(
        outputs in 1usize..130, inputs in 1usize..400, rows in 1usize..=33, group in prop::sample::select(vec![32, 64, 128]),
        seed: u16, four: bool, rotated: bool,
    ) {
        check(&Stored::random((outputs, inputs), group, u32::from(seed), four, rotated), rows, u32::from(seed));
    }
}

#[test]
fn chunks_of_long_inputs_are_added_in_order() {
    for (four, group) in [(false, 64), (true, 64), (false, 32), (true, 128)] {
        check(&Stored::random((40, 3 * 1024 + 70), group, 5, four, true), 5, 5);
    }
}

#[test]
fn every_row_count_gives_the_rows_alone() {
    for four in [false, true] {
        let stored = Stored::random((97, 320), 64, 4, four, true);
        let (packed, x) = (stored.packed(), numbers(33 * 320, 3));
        let want = stored.law(&x, 33);
        for pool in pools() {
            let mut scratch = Activations::default();
            for rows in 1..=33 {
                let mut y = vec![0.0; rows * 97];
                linear(&pool, &packed, &x[..rows * 320], rows, &mut y, &mut scratch);
                assert_bits(&y, &want[..rows * 97], &pool, &format!("{rows} rows, M {four}"));
            }
        }
    }
}

/// What the product is for: within the rounding of 8-bit activations of the exact product of the stored weights.
#[test]
fn products_are_near_the_exact_ones() {
    for (four, rotated) in [(false, false), (false, true), (true, false), (true, true)] {
        let stored = Stored::random((60, 512), 64, 11, four, rotated);
        let (x, pool) = (numbers(512, 12), Pool::new(1));
        let mut y = vec![0.0; 60];
        linear(&pool, &stored.packed(), &x, 1, &mut y, &mut Activations::default());
        let (mut error, mut size) = (0.0, 0.0);
        for (o, y) in y.iter().enumerate() {
            let exact: f64 = stored.row(o).iter().zip(&x).map(|(w, x)| w * f64::from(*x)).sum();
            error += (f64::from(*y) - exact).powi(2);
            size += exact.powi(2);
        }
        let relative = (error / size).sqrt();
        assert!(relative < 0.03, "M {four}, rotated {rotated}: relative error {relative}");
    }
}

#[test]
fn stacks_mix_codes_with_floats_and_choose_rows() {
    let (inputs, rows, pool) = (160, 5, Pool::new(2));
    let x = numbers(rows * inputs, 9);
    let (l, m) = (Stored::random((33, inputs), 64, 1, false, true), Stored::random((40, inputs), 64, 2, true, true));
    let floats = Packed::from_f32(&numbers(7 * inputs, 3), 7, inputs).unwrap();
    let product = |packed: &Packed| {
        let mut y = vec![0.0; rows * packed.outputs()];
        linear(&pool, packed, &x, rows, &mut y, &mut Activations::default());
        y
    };
    let parts = [l.packed(), floats, m.packed()];
    let stacked = product(&Packed::concat_rows(parts.to_vec()).unwrap());
    let mut first = 0;
    for part in &parts {
        let (n, alone) = (part.outputs(), product(part));
        for r in 0..rows {
            assert_bits(&stacked[r * 80 + first..][..n], &alone[r * n..][..n], &pool, "stacked");
        }
        first += n;
    }
    let chosen = [5, 32, 0, 5, 31, 8];
    for stored in [&l, &m] {
        let (all, few) = (product(&stored.packed()), product(&stored.packed().select(&chosen)));
        for r in 0..rows {
            let want: Vec<f32> = chosen.iter().map(|&o| all[r * stored.outputs + o]).collect();
            assert_bits(&few[r * 6..][..6], &want, &pool, "chosen rows");
        }
    }
    let text = |parts| Packed::concat_rows(parts).err().unwrap().to_string();
    let plain = Stored::random((3, inputs), 64, 1, false, false).packed();
    assert!(text(vec![l.packed(), plain]).contains("different signs"));
    let fine = Stored::random((3, inputs), 32, 1, false, true).packed();
    assert!(text(vec![l.packed(), fine]).contains("different groups"));
}

/// Floats in the rotated basis multiply the rotated input: the same weights without rounded activations.
#[test]
fn rotated_floats_give_the_exact_product() {
    let stored = Stored::random((50, 100), 64, 6, true, true);
    let (x, pool) = (numbers(300, 2), Pool::new(2));
    let weights: Vec<f32> = (0..50 * 100)
        .map(|i| {
            let (s, c) = stored.weight(i / 100, i % 100);
            s * c as f32
        })
        .collect();
    let signs = Signs::new(stored.signs.as_ref().unwrap()).unwrap();
    let packed = Packed::from_f32(&weights, 50, 100).unwrap().rotated(&signs).unwrap();
    let mut y = vec![0.0; 150];
    linear(&pool, &packed, &x, 3, &mut y, &mut Activations::default());
    for (i, y) in y.iter().enumerate() {
        let exact: f64 = stored.row(i % 50).iter().zip(&x[i / 50 * 100..]).map(|(w, x)| w * f64::from(*x)).sum();
        assert!((f64::from(*y) - exact).abs() < 2e-3, "{y} {exact}");
    }
    let mut row = vec![0.0; 100];
    packed.row(3, &mut row);
    assert!(row.iter().zip(stored.row(3)).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4));
}

#[test]
fn codes_that_are_no_matrix_are_refused() {
    let text = |r: Result<Packed, crate::kernels::PackError>| r.err().unwrap().to_string();
    let one = [bf16::ONE; 2];
    assert_eq!(text(Packed::from_l(&[0; 64], &one[..1], (1, 64), 48, None)), "a group of 48 inputs, expected 32, 64 or 128");
    assert!(text(Packed::from_l(&[0; 63], &one[..1], (1, 64), 64, None)).contains("63 elements"));
    assert!(Packed::from_l(&[0; 64], &one, (1, 64), 64, None).is_err());
    assert!(Packed::from_m((&[0; 31], &one[..1], &[0]), (1, 64), 64, None).is_err());
    assert!(Packed::from_m((&[0; 32], &one[..1], &[]), (1, 64), 64, None).is_err());
    let signs = Signs::new(&[1; 32]).unwrap();
    assert!(text(Packed::from_l(&[0; 64], &one[..1], (1, 64), 64, Some(&signs))).contains("32 signs"));
}
