//! Cases of the 8-bit arithmetic: the transform and codes of activations, and products of L and M for every number of rows.
//! The shaders know groups of 64 inputs only.

use super::super::*;
use super::{Cases, numbers};
use crate::kernels::{Activations, Packed, Signs, linear};
use half::bf16;
use specdec::hadamard;

const GROUP: usize = CODED_GROUP as usize;
const MADE: &str = "sizes agree";

/// A matrix of codes, on the device and as the processor packs it.
struct Matrix {
    shape: (usize, usize),
    words: Array<[u32; 4]>,
    scales: Array<bf16>,
    /// Of M.
    zeros: Option<Array<u8>>,
    host: Packed,
}

impl Matrix {
    fn new(gpu: &Gpu, (outputs, inputs): (usize, usize), four: bool) -> Result<Self, GpuError> {
        let groups = inputs.div_ceil(GROUP);
        let draws = |n: usize, seed| numbers(n, seed).into_iter().map(|x| x.to_bits() / 7).collect::<Vec<_>>();
        let scales: Vec<bf16> = numbers(outputs * groups, 2).into_iter().map(|x| bf16::from_f32(x * 0.01)).collect();
        let signs = Signs::new(&hadamard::signs(inputs)).expect(MADE);
        let shape = (outputs, inputs);
        let (words, zeros, host) = if four {
            let codes: Vec<u8> = draws(outputs * inputs, 3).into_iter().map(|w| (w % 16) as u8).collect();
            let zeros: Vec<u8> = draws(outputs * groups, 4).into_iter().map(|w| (w % 16) as u8).collect();
            let code = |row: usize, k: usize| if k < inputs { codes[row * inputs + k] } else { 0 };
            // Byte b of word i: input 8 i + b in its low half, 8 i + 4 + b in its high half.
            let byte =
                |row, first, b: usize| code(row, first + b / 4 * 8 + b % 4) | code(row, first + b / 4 * 8 + 4 + b % 4) << 4;
            let (packed, packed_zeros) = (halves(&codes, inputs), halves(&zeros, groups));
            let host = Packed::from_m((&packed, &scales, &packed_zeros), shape, GROUP, Some(&signs)).expect(MADE);
            (words(shape, 32, byte), Some(gpu.upload(&by_panel(&zeros, outputs, groups, 0))?), host)
        } else {
            let codes: Vec<i8> = draws(outputs * inputs, 3).into_iter().map(|w| ((w % 255) as i32 - 127) as i8).collect();
            let byte = |row: usize, first: usize, b: usize| {
                if first + b < inputs { codes[row * inputs + first + b] as u8 } else { 0 }
            };
            let host = Packed::from_l(&codes, &scales, shape, GROUP, Some(&signs)).expect(MADE);
            (words(shape, 16, byte), None, host)
        };
        let scales = by_panel(&scales, outputs, groups, bf16::ZERO);
        Ok(Self { shape, words: gpu.upload(&words)?, scales: gpu.upload(&scales)?, zeros, host })
    }
}

/// Rows of 4-bit numbers, two a byte, as files have them.
fn halves(numbers: &[u8], len: usize) -> Vec<u8> {
    let byte = |pair: &[u8]| pair[0] | pair.get(1).map_or(0, |high| high << 4);
    numbers.chunks_exact(len).flat_map(|row| row.chunks(2)).map(byte).collect()
}

/// `[panel][per inputs][32 outputs][16 bytes]`; `byte(row, first input, place)`.
fn words((outputs, inputs): (usize, usize), per: usize, byte: impl Fn(usize, usize, usize) -> u8) -> Vec<[u32; 4]> {
    let (panels, pieces) = (outputs.div_ceil(32), inputs.div_ceil(GROUP) * GROUP / per);
    let mut packed = Vec::with_capacity(panels * pieces * 32);
    for i in 0..panels * pieces * 32 {
        let (row, first) = (i / 32 / pieces * 32 + i % 32, i / 32 % pieces * per);
        let bytes: [u8; 16] = std::array::from_fn(|b| if row < outputs { byte(row, first, b) } else { 0 });
        packed.push([0, 4, 8, 12].map(|at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])));
    }
    packed
}

/// `[panel][group][32]`, zero padded.
fn by_panel<T: Copy>(of_rows: &[T], outputs: usize, groups: usize, zero: T) -> Vec<T> {
    let mut packed = vec![zero; outputs.div_ceil(32) * groups * 32];
    for (i, &x) in of_rows.iter().enumerate() {
        let (row, g) = (i / groups, i % groups);
        packed[(row / 32 * groups + g) * 32 + row % 32] = x;
    }
    packed
}

impl Cases<'_> {
    pub(in super::super) fn activations(&mut self) -> Result<(), GpuError> {
        for (rows, inputs, transformed) in [(1, 1usize, true), (3, 31, true), (2, 64, false), (5, 100, true), (33, 300, true)] {
            let (stride, groups, stored) = (inputs + 5, inputs.div_ceil(GROUP), hadamard::signs(inputs));
            let mut x = numbers(rows * inputs, 1);
            // A group of zeros, one below 2^-100, and one whose values lie half way between two codes.
            x[..inputs.min(GROUP)].fill(if rows == 1 { 0.0 } else { 1e-31 });
            if !transformed {
                x[inputs..2 * inputs].iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 - 31.5);
                x[inputs] = 127.0;
            }
            let wide: Vec<f32> =
                [0.0; 3].into_iter().chain(x.chunks_exact(inputs).flat_map(|r| [r, &[9.0; 5]].concat())).collect();
            let gpu = self.gpu;
            let (dx, ds) = (gpu.upload(&wide)?, gpu.upload(&stored)?);
            let codes = gpu.alloc::<i8>(rows * groups * GROUP)?;
            let (scales, sums) = (gpu.alloc::<f32>(rows * groups)?, gpu.alloc::<i32>(rows * groups)?);
            let a = QuantiseArgs { inputs: inputs as u32, x_first: 3, x_stride: stride as u32, hadamard: transformed.into() };
            let (x_in, signs_in) = (dx.input(), ds.input());
            Quantise { x: x_in, signs: signs_in, codes: codes.output(), scales: scales.output(), sums: sums.output(), a }
                .dispatch(gpu, [groups as u32, rows as u32, 1], QUANTISE_THREADS)?;
            let signs = Signs::new(&stored).expect(MADE);
            let mut scratch = Activations::default();
            let want = scratch.fill(&self.pool, &x, (rows, inputs), GROUP, transformed.then_some(&signs));
            let float = |codes: &[i8]| codes.iter().map(|&c| f32::from(c)).collect::<Vec<_>>();
            let total = |sums: &[i32]| sums.iter().map(|&s| s as f32).collect::<Vec<_>>();
            let (want_codes, want_scales, want_sums) = (float(want.codes), want.scales.to_vec(), total(want.totals));
            self.compare("quantise", &float(&gpu.read(&codes, 0, want_codes.len())?), &want_codes);
            self.compare("quantise", &gpu.read(&scales, 0, want_scales.len())?, &want_scales);
            self.compare("quantise", &total(&gpu.read(&sums, 0, want_sums.len())?), &want_sums);
        }
        Ok(())
    }

    pub(in super::super) fn coded(&mut self) -> Result<(), GpuError> {
        // The last has more chunks than a threadgroup has simdgroups.
        for (shape, all_rows) in
            [((1, 1), &[1][..]), ((33, 127), &[1, 3, 4, 17]), ((70, 1100), &[1, 5, 33]), ((34, 9290), &[1, 2])]
        {
            for four in [false, true] {
                let matrix = Matrix::new(self.gpu, shape, four)?;
                all_rows.iter().try_for_each(|&rows| self.products(&matrix, rows))?;
            }
        }
        Ok(())
    }

    fn products(&mut self, m: &Matrix, rows: usize) -> Result<(), GpuError> {
        let ((outputs, inputs), gpu) = (m.shape, self.gpu);
        let x = numbers(rows * inputs, rows as u32);
        let mut want = vec![0.0; rows * outputs];
        let mut scratch = Activations::default();
        self.host(|pool| linear::linear(pool, &m.host, &x, rows, &mut want, &mut scratch));
        let signs = Signs::new(&hadamard::signs(inputs)).expect(MADE);
        let found = scratch.fill(&self.pool, &x, (rows, inputs), GROUP, Some(&signs));
        let bytes = |c: &[i8]| u32::from_le_bytes([c[0] as u8, c[1] as u8, c[2] as u8, c[3] as u8]);
        let codes: Vec<[u32; 4]> = found.codes.chunks_exact(16).map(|c| [0, 4, 8, 12].map(|at| bytes(&c[at..]))).collect();
        let (d_codes, d_scales, d_sums) = (gpu.upload(&codes)?, gpu.upload(found.scales)?, gpu.upload(found.totals)?);
        // A column of another part before, one after.
        let stride = outputs + 2;
        let framed: Vec<f32> = want.chunks_exact(outputs).flat_map(|y| [&[0.0], y, &[0.0]].concat()).collect();
        let a =
            CodedArgs { rows: rows as u32, inputs: inputs as u32, outputs: outputs as u32, y_first: 1, y_stride: stride as u32 };
        for (kernel, of_group) in [(0, 1), (1, CODED_FEW), (2, CODED_MANY)] {
            let out = gpu.alloc::<f32>(rows * stride)?;
            let (w, w_scales, x, scales, sums, y) =
                (m.words.input(), m.scales.input(), d_codes.input(), d_scales.input(), d_sums.input(), out.output());
            let (grid, t) = ([outputs.div_ceil(32) as u32, (rows as u32).div_ceil(of_group), 1], CODED_THREADS);
            let name = match (&m.zeros, kernel) {
                (None, 0) => (LinearLOne { w, w_scales, x, scales, sums, y, a }.dispatch(gpu, grid, t)?, "linear_l_one"),
                (None, 1) => (LinearLFew { w, w_scales, x, scales, sums, y, a }.dispatch(gpu, grid, t)?, "linear_l_few"),
                (None, _) => (LinearLMany { w, w_scales, x, scales, sums, y, a }.dispatch(gpu, grid, t)?, "linear_l_many"),
                (Some(z), kernel) => {
                    let zeros = z.input();
                    match kernel {
                        0 => (LinearMOne { w, w_scales, zeros, x, scales, sums, y, a }.dispatch(gpu, grid, t)?, "linear_m_one"),
                        1 => (LinearMFew { w, w_scales, zeros, x, scales, sums, y, a }.dispatch(gpu, grid, t)?, "linear_m_few"),
                        _ => (LinearMMany { w, w_scales, zeros, x, scales, sums, y, a }.dispatch(gpu, grid, t)?, "linear_m_many"),
                    }
                }
            }
            .1;
            self.compare(name, &gpu.read(&out, 0, framed.len())?, &framed);
        }
        Ok(())
    }
}
