//! Cases of the kernels that choose from rows of logits: the largest, log-sum-exp, the k largest, noise, the sampled token.
//! What they are compared with is what decoding on the processor calls, the sampler included.

use super::super::*;
use super::{Cases, groups, numbers};
use crate::history::History;
use crate::kernels::{noise, reduce};
use crate::sampler::Sampler;
use specdec::philox::TokenNoise;
use specdec::{SamplingOptions, SamplingParams};

/// A slot of the k largest that nothing fills.
const NOBODY: u32 = u32::MAX;

/// Integers as the comparison takes them, bits and all.
fn as_bits(ids: &[u32]) -> Vec<f32> {
    ids.iter().map(|&id| f32::from_bits(id)).collect()
}

/// Rows with ties, infinities and zeros of both signs; `nan` sprinkles NaN, and fills the last row with it.
fn logits(rows: usize, width: usize, nan: bool) -> Vec<f32> {
    let mut x: Vec<f32> = numbers(rows * width, width as u32).into_iter().map(|x| (x * 32.0).round() / 4.0).collect();
    for (i, x) in x.iter_mut().enumerate() {
        match i % 37 {
            5 => *x = -0.0,
            11 => *x = f32::NEG_INFINITY,
            19 if nan => *x = f32::NAN,
            _ => {}
        }
    }
    if nan {
        x[(rows - 1) * width..].fill(f32::NAN);
    }
    x
}

impl Cases<'_> {
    pub(in super::super) fn choices(&mut self) -> Result<(), GpuError> {
        let gpu = self.gpu;
        for width in [1, 40, 127, 128, 129, 1000] {
            let rows = 4;
            let (x, a) = (logits(rows, width, true), SelectArgs { width: width as u32 });
            let (dx, ids) = (gpu.upload(&x)?, gpu.alloc::<u32>(rows)?);
            let grid = [rows as u32, 1, 1];
            Argmax { x: dx.input(), ids: ids.output(), a }.dispatch(gpu, grid, FOLD_THREADS)?;
            let mut want = vec![0; rows];
            self.host(|pool| reduce::argmax(pool, &x, width, &mut want));
            self.compare("argmax", &as_bits(&gpu.read(&ids, 0, rows)?), &as_bits(&want));

            for k in [1, 7, width.min(60)] {
                let k = k.min(width);
                let (ids, values) = (gpu.alloc::<u32>(rows * k)?, gpu.alloc::<f32>(rows * k)?);
                let a = TopKArgs { width: width as u32, k: k as u32 };
                TopK { x: dx.input(), ids: ids.output(), values: values.output(), a }.dispatch(gpu, grid, FOLD_THREADS)?;
                let mut want = vec![(NOBODY, f32::NEG_INFINITY); rows * k];
                for (x, want) in x.chunks_exact(width).zip(want.chunks_exact_mut(k)) {
                    let found = self.host(|pool| reduce::top_k(pool, x, want));
                    want[found..].fill((NOBODY, f32::NEG_INFINITY));
                }
                let (want_ids, want_values): (Vec<u32>, Vec<f32>) = want.into_iter().unzip();
                self.compare("top_k", &as_bits(&gpu.read(&ids, 0, rows * k)?), &as_bits(&want_ids));
                self.compare("top_k", &gpu.read(&values, 0, rows * k)?, &want_values);
            }

            let x = logits(rows, width, false);
            let (dx, sums) = (gpu.upload(&x)?, gpu.alloc::<f32>(rows)?);
            LogSumExp { x: dx.input(), out: sums.output(), a }.dispatch(gpu, grid, FOLD_THREADS)?;
            let mut want = vec![0.0; rows];
            self.host(|pool| reduce::log_sum_exp(pool, &x, width, &mut want));
            self.compare("log_sum_exp", &gpu.read(&sums, 0, rows)?, &want);
        }
        Ok(())
    }

    pub(in super::super) fn sampling(&mut self) -> Result<(), GpuError> {
        let gpu = self.gpu;
        let words = |x: u64| [x as u32, (x >> 32) as u32];
        for (seed, position, tokens) in [(0, 0, 1), (7, 9, 130), (u64::MAX - 5, 1 << 33 | 12, 1001)] {
            let ([seed_low, seed_high], [position_low, position_high]) = (words(seed), words(position));
            let out = gpu.alloc::<f32>(tokens)?;
            let a = GumbelArgs { tokens: tokens as u32, seed_low, seed_high, position_low, position_high };
            Gumbel { out: out.output(), a }.dispatch(gpu, groups(tokens, FOLD_THREADS), FOLD_THREADS)?;
            let mut want = vec![0.0; tokens];
            self.host(|pool| noise::gumbel(pool, TokenNoise::new(seed, position), &mut want));
            self.compare("gumbel", &gpu.read(&out, 0, tokens)?, &want);
        }
        for (width, temperature, min_p, seed) in
            [(1, 1.0, 0.0, 3), (300, 0.7, 0.0, 1 << 40), (300, 1.3, 0.2, 4), (1000, 1.0, 0.05, 5)]
        {
            let options = SamplingOptions { temperature, min_p, seed, ..SamplingOptions::default() };
            let params = SamplingParams::new(options).expect("options in their ranges");
            let rows = 20;
            let x = logits(rows, width, false);
            let positions: Vec<u64> = (0..rows as u64).map(|r| (1 << 32) - 7 + r).collect();
            let (dx, dp) = (gpu.upload(&x)?, gpu.upload(&positions.iter().flat_map(|&p| words(p)).collect::<Vec<_>>())?);
            let ids = gpu.alloc::<u32>(rows)?;
            let [seed_low, seed_high] = words(seed);
            let a = SampleArgs { width: width as u32, seed_low, seed_high, inverse_temperature: 1.0 / temperature, min_p };
            Sample { x: dx.input(), positions: dp.input(), ids: ids.output(), a }.dispatch(
                gpu,
                [rows as u32, 1, 1],
                FOLD_THREADS,
            )?;
            let (mut sampler, history) = (Sampler::new(params, width), History::new(&[], width));
            let want: Vec<u32> = self.host(|pool| {
                let rows = x.chunks_exact(width).zip(&positions);
                rows.map(|(x, &position)| sampler.choose(pool, x, &history, position).id).collect()
            });
            self.compare("sample", &as_bits(&gpu.read(&ids, 0, rows)?), &as_bits(&want));
        }
        Ok(())
    }
}
