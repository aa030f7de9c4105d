//! Rotations against their written order and against f64.

use super::*;
use crate::kernels::cases::{assert_bits, numbers, pools};

#[test]
fn leading_channels_rotate_in_halves_and_the_rest_passes() {
    for (dim, rotary) in [(8, 2), (16, 16), (128, 32), (60, 34)] {
        let table = Table::new(300, rotary, 1e6);
        let at = Layout { rows: 3, row_stride: 2 * dim + 5, heads: 2, head_stride: dim, dim };
        let x = numbers(3 * at.row_stride, 1);
        let positions = [0, 299, 17];
        for pool in pools() {
            let mut y = x.clone();
            table.apply(&pool, &mut y, at, &positions);
            let mut want = x.clone();
            for i in 0..at.vectors() {
                let p = positions[i / 2] as usize;
                for j in 0..rotary / 2 {
                    let angle = p as f64 * 1e6f64.powf(-2.0 * j as f64 / rotary as f64);
                    let (cos, sin) = (angle.cos() as f32, angle.sin() as f32);
                    let (x1, x2) = (x[at.start(i) + j], x[at.start(i) + j + rotary / 2]);
                    want[at.start(i) + j] = x1.mul_add(cos, 0.0 - x2 * sin);
                    want[at.start(i) + j + rotary / 2] = x2.mul_add(cos, x1 * sin);
                }
            }
            assert_bits(&y, &want, &pool, "rope");
        }
    }
    assert_eq!(Table::new(300, 32, 1e6).positions(), 300);
}

#[test]
#[should_panic(expected = "range")]
fn a_position_beyond_the_table_is_refused() {
    let mut x = vec![0.0; 8];
    Table::new(4, 8, 1e4).apply(&crate::kernels::Pool::new(1), &mut x, Layout::rows(1, 8), &[4]);
}
