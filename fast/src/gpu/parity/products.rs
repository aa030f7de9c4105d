//! Cases of the kernels that read weight matrices: embedding rows and `y = W x`, for every storage and number of rows.

use super::super::*;
use super::{Cases, groups, numbers};
use crate::kernels::{Activations, Packed, linear};
use half::{bf16, f16};

/// `[outputs, inputs]` as panels of 32 outputs, `[panel][input][32]`, zero padded.
fn panels<T: Element>(matrix: &[T], outputs: usize, inputs: usize, zero: T) -> Vec<T> {
    let mut packed = vec![zero; outputs.div_ceil(32) * inputs * 32];
    for (i, &w) in matrix.iter().enumerate() {
        let (row, k) = (i / inputs, i % inputs);
        packed[(row / 32 * inputs + k) * 32 + row % 32] = w;
    }
    packed
}

/// A matrix in every storage, on the device and as the processor packs it.
struct Weights {
    shape: (usize, usize),
    f32: Array<f32>,
    bf16: Array<bf16>,
    f16: Array<f16>,
    codes: Array<i8>,
    scales: Array<bf16>,
    host: [Packed; 4],
}

const GROUP: usize = 64;

impl Weights {
    fn new(gpu: &Gpu, outputs: usize, inputs: usize) -> Result<Self, GpuError> {
        let w = numbers(outputs * inputs, 11);
        let b: Vec<bf16> = w.iter().map(|&w| bf16::from_f32(w)).collect();
        let h: Vec<f16> = w.iter().map(|&w| f16::from_f32(w)).collect();
        let codes: Vec<i8> = w.iter().map(|w| (w * 63.0).clamp(-127.0, 127.0) as i8).collect();
        let groups = inputs.div_ceil(GROUP);
        let scales: Vec<bf16> = numbers(outputs * groups, 12).iter().map(|&s| bf16::from_f32(s)).collect();
        let made = "sizes agree";
        Ok(Self {
            shape: (outputs, inputs),
            f32: gpu.upload(&panels(&w, outputs, inputs, 0.0))?,
            bf16: gpu.upload(&panels(&b, outputs, inputs, bf16::ZERO))?,
            f16: gpu.upload(&panels(&h, outputs, inputs, f16::ZERO))?,
            codes: gpu.upload(&panels(&codes, outputs, inputs, 0))?,
            scales: gpu.upload(&panels(&scales, outputs, groups, bf16::ZERO))?,
            host: [
                Packed::from_f32(&w, outputs, inputs).expect(made),
                Packed::from_bf16(&b, outputs, inputs).expect(made),
                Packed::from_f16(&h, outputs, inputs).expect(made),
                Packed::from_q8(&codes, &scales, (outputs, inputs), GROUP).expect(made),
            ],
        })
    }
}

impl Cases<'_> {
    pub(super) fn embeddings(&mut self) -> Result<(), GpuError> {
        let (outputs, inputs, tokens) = (70, 130, [69u32, 0, 33, 33]);
        let w = Weights::new(self.gpu, outputs, inputs)?;
        let dt = self.gpu.upload(&tokens)?;
        let (tokens_n, part_rows) = (tokens.len() as u32, outputs as u32);
        let a = EmbedArgs { inputs: inputs as u32, tokens: tokens_n, first_row: 0, part_rows, group: GROUP as u32 };
        let grid = groups(tokens.len() * inputs, ROWS_THREADS);
        for (i, name) in ["embed_f32", "embed_bf16", "embed_f16", "embed_q8"].into_iter().enumerate() {
            let out = self.gpu.alloc(tokens.len() * inputs)?;
            let (tokens_in, to, gpu) = (dt.input(), out.output(), self.gpu);
            match i {
                0 => EmbedF32 { table: w.f32.input(), tokens: tokens_in, out: to, a }.dispatch(gpu, grid, ROWS_THREADS)?,
                1 => EmbedBf16 { table: w.bf16.input(), tokens: tokens_in, out: to, a }.dispatch(gpu, grid, ROWS_THREADS)?,
                2 => EmbedF16 { table: w.f16.input(), tokens: tokens_in, out: to, a }.dispatch(gpu, grid, ROWS_THREADS)?,
                _ => EmbedQ8 { codes: w.codes.input(), scales: w.scales.input(), tokens: tokens_in, out: to, a }.dispatch(
                    gpu,
                    grid,
                    ROWS_THREADS,
                )?,
            }
            let mut want = vec![0.0; tokens.len() * inputs];
            tokens.iter().zip(want.chunks_exact_mut(inputs)).for_each(|(&t, row)| w.host[i].row(t as usize, row));
            self.compare(name, &self.gpu.read(&out, 0, want.len())?, &want);
        }
        Ok(())
    }

    pub(super) fn linears(&mut self) -> Result<(), GpuError> {
        for (outputs, inputs) in [(1, 1), (33, 127), (64, 300), (70, 1300)] {
            let w = Weights::new(self.gpu, outputs, inputs)?;
            for rows in [1, 2, 4, 5, 17, 33] {
                let x = numbers(rows * inputs, rows as u32);
                let dx = self.gpu.upload(&x)?;
                let want: Vec<Vec<f32>> = self.host(|pool| {
                    let product = |w: &Packed| {
                        let mut y = vec![0.0; rows * outputs];
                        linear::linear(pool, w, &x, rows, &mut y, &mut Activations::default());
                        y
                    };
                    w.host.iter().map(product).collect()
                });
                for (kernel, of_group) in [(0, 1), (1, LINEAR_FEW), (2, LINEAR_MANY)] {
                    if rows == 33 && kernel == 0 {
                        continue;
                    }
                    self.linear(&w, (&dx, rows), (kernel, of_group), &want)?;
                }
            }
        }
        Ok(())
    }

    fn linear(
        &mut self,
        w: &Weights,
        (x, rows): (&Array<f32>, usize),
        (kernel, of_group): (usize, u32),
        want: &[Vec<f32>],
    ) -> Result<(), GpuError> {
        let (outputs, inputs) = w.shape;
        // A column of another part before, one after.
        let stride = outputs + 2;
        let a = LinearArgs {
            rows: rows as u32,
            inputs: inputs as u32,
            outputs: outputs as u32,
            x_first: 0,
            y_first: 1,
            y_stride: stride as u32,
            group: GROUP as u32,
        };
        let grid = [outputs.div_ceil(32) as u32, (rows as u32).div_ceil(of_group), 1];
        for (storage, want) in want.iter().enumerate() {
            let out = self.gpu.alloc::<f32>(rows * stride)?;
            let (x, y, gpu, t) = (x.input(), out.output(), self.gpu, LINEAR_THREADS);
            let (full, b, h, codes, scales) = (w.f32.input(), w.bf16.input(), w.f16.input(), w.codes.input(), w.scales.input());
            let name = match (storage, kernel) {
                (0, 0) => (LinearF32One { w: full, x, y, a }.dispatch(gpu, grid, t)?, "linear_f32_one"),
                (0, 1) => (LinearF32Few { w: full, x, y, a }.dispatch(gpu, grid, t)?, "linear_f32_few"),
                (0, _) => (LinearF32Many { w: full, x, y, a }.dispatch(gpu, grid, t)?, "linear_f32_many"),
                (1, 0) => (LinearBf16One { w: b, x, y, a }.dispatch(gpu, grid, t)?, "linear_bf16_one"),
                (1, 1) => (LinearBf16Few { w: b, x, y, a }.dispatch(gpu, grid, t)?, "linear_bf16_few"),
                (1, _) => (LinearBf16Many { w: b, x, y, a }.dispatch(gpu, grid, t)?, "linear_bf16_many"),
                (2, 0) => (LinearF16One { w: h, x, y, a }.dispatch(gpu, grid, t)?, "linear_f16_one"),
                (2, 1) => (LinearF16Few { w: h, x, y, a }.dispatch(gpu, grid, t)?, "linear_f16_few"),
                (2, _) => (LinearF16Many { w: h, x, y, a }.dispatch(gpu, grid, t)?, "linear_f16_many"),
                (_, 0) => (LinearQ8One { codes, scales, x, y, a }.dispatch(gpu, grid, t)?, "linear_q8_one"),
                (_, 1) => (LinearQ8Few { codes, scales, x, y, a }.dispatch(gpu, grid, t)?, "linear_q8_few"),
                (_, _) => (LinearQ8Many { codes, scales, x, y, a }.dispatch(gpu, grid, t)?, "linear_q8_many"),
            }
            .1;
            let got = self.gpu.read(&out, 0, rows * stride)?;
            let framed: Vec<f32> = want.chunks_exact(outputs).flat_map(|y| [&[0.0], y, &[0.0]].concat()).collect();
            self.compare(name, &got, &framed);
        }
        Ok(())
    }
}
