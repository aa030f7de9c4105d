//! What the kernels' tests share: numbers by seed, the pools to compare, equality of bits.

use super::lanes::Isa;
use super::pool::Pool;
use std::sync::Once;

/// Deterministic numbers of mixed sign and size.
pub(super) fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state as i32 as f32) * 2f32.powi(-31) * if state & 7 == 0 { 8.0 } else { 0.5 }
        })
        .collect()
}

/// Numbers in [low, high].
pub(super) fn between(n: usize, seed: u32, low: f32, high: f32) -> Vec<f32> {
    numbers(n, seed).into_iter().map(|x| low + (high - low) * (x * 10.0).fract().abs()).collect()
}

/// Pools of 1, 2 and 4 threads for every instruction set that this processor has.
pub(super) fn pools() -> Vec<Pool> {
    static TOLD: Once = Once::new();
    let (here, absent): (Vec<_>, Vec<_>) = Isa::ALL.into_iter().partition(|isa| isa.available());
    TOLD.call_once(|| println!("not on this processor, so not compared here: {absent:?}"));
    here.into_iter().flat_map(|isa| [1, 2, 4].map(|threads| Pool::with_isa(threads, isa))).collect()
}

/// Panics unless `y` is `want` bit for bit.
pub(super) fn assert_bits(y: &[f32], want: &[f32], pool: &Pool, what: &str) {
    assert_eq!(y.len(), want.len(), "{what}");
    let differs = y.iter().zip(want).position(|(y, w)| y.to_bits() != w.to_bits());
    let place = differs.map(|i| (i, y[i], want[i]));
    assert_eq!(place, None, "{what}, {:?}, {} threads: (element, found, expected)", pool.isa(), pool.threads());
}

/// A random tree of `rows` rows: row 0 is the root.
pub(super) fn tree(rows: usize, seed: u32) -> Vec<Option<usize>> {
    let draws = numbers(rows, seed);
    (0..rows).map(|r| (r > 0).then(|| draws[r].to_bits() as usize / 7 % r.max(1))).collect()
}

/// Rows from the root to `row`.
pub(super) fn path(parents: &[Option<usize>], row: usize) -> Vec<usize> {
    let mut path = vec![row];
    while let Some(parent) = parents[path[path.len() - 1]] {
        path.push(parent);
    }
    path.reverse();
    path
}
