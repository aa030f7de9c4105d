//! The convolution along tree paths: against its written order, against chains, and with the tail committed.

use super::*;
use crate::kernels::cases::{assert_bits, numbers, path, pools, tree};
use crate::kernels::math::silu;

/// One row from its window: all rows of the sequence up to it, the tail before them.
fn law(weights: &[f32], taps: usize, window: &[&[f32]]) -> Vec<f32> {
    let window = &window[window.len() - taps..];
    (0..window[0].len())
        .map(|c| {
            let w = &weights[c * taps..][..taps];
            let acc = (1..taps).fold(w[0] * window[0][c], |acc, t| w[t].mul_add(window[t][c], acc));
            silu(acc)
        })
        .collect()
}

#[test]
fn a_rows_window_is_its_path_and_then_the_tail() {
    for (channels, taps, rows) in [(7, 4, 33), (300, 4, 9), (16, 2, 5), (33, 8, 12)] {
        let (weights, tail) = (numbers(channels * taps, 1), numbers((taps - 1) * channels, 2));
        let stride = channels + 5;
        let data = numbers(rows * stride, 3);
        let raw = RawRows { data: &data, stride, rows };
        let parents = tree(rows, 4);
        let conv = Conv::new(&weights, channels, taps);
        let window = |path: &[usize]| {
            let before: Vec<&[f32]> = tail.chunks(channels).collect();
            before.into_iter().chain(path.iter().map(|&r| &data[r * stride..][..channels])).collect::<Vec<_>>()
        };
        let want: Vec<f32> = (0..rows).flat_map(|r| law(&weights, taps, &window(&path(&parents, r)))).collect();
        let chain: Vec<f32> = (0..rows).flat_map(|r| law(&weights, taps, &window(&(0..=r).collect::<Vec<_>>()))).collect();
        for pool in pools() {
            let mut out = vec![f32::NAN; rows * channels];
            conv.forward(&pool, &tail, raw, Topology::Tree(&parents), &mut out);
            assert_bits(&out, &want, &pool, "tree");
            conv.forward(&pool, &tail, raw, Topology::Chain, &mut out);
            assert_bits(&out, &chain, &pool, "chain");
        }
        for row in 0..rows {
            let path = path(&parents, row);
            let mut next = tail.clone();
            conv.commit(&mut next, raw, path.iter().copied());
            let all = window(&path);
            assert_eq!(next, all[all.len() - (taps - 1)..].concat(), "tail after {path:?}");
        }
        let mut same = tail.clone();
        conv.commit(&mut same, raw, std::iter::empty());
        assert_eq!(same, tail);
    }
}
