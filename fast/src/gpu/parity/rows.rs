//! Cases of the kernels that take rows by themselves: functions, elementwise operations, norms, RoPE, moves.

use super::super::*;
use super::{Cases, groups, numbers};
use crate::kernels::elementwise::{self, GateInputs, GateWeights};
use crate::kernels::{Layout, math, norm, rope};

/// Heads side by side in wider rows, from element `first` on.
fn place(first: usize, at: Layout) -> Place {
    let [first, row_stride, heads, head_stride] = [first, at.row_stride, at.heads, at.head_stride].map(|n| n as u32);
    Place { first, row_stride, heads, head_stride }
}

impl Cases<'_> {
    pub(super) fn functions(&mut self) -> Result<(), GpuError> {
        // Every 65521st bit pattern: both signs, subnormals, infinities.
        let x: Vec<f32> = (0..=u32::MAX / 65521).map(|i| f32::from_bits(i * 65521)).filter(|x| !x.is_nan()).collect();
        let functions = [math::exp, math::log, math::sigmoid, math::silu, math::softplus, math::rsqrt];
        let (input, len) = (self.gpu.upload(&x)?, x.len() as u32);
        for (f, function) in (0..).zip(functions) {
            let out = self.gpu.alloc::<f32>(x.len())?;
            let call = Apply { x: input.input(), y: out.output(), a: ApplyArgs { len, function: f } };
            call.dispatch(self.gpu, groups(x.len(), ELEMENTS_THREADS), ELEMENTS_THREADS)?;
            let got = self.gpu.read(&out, 0, x.len())?;
            let want: Vec<f32> = self.host(|_| x.iter().map(|&x| function(x)).collect());
            // A NaN's own bits are nobody's promise.
            let number = |v: &[f32]| v.iter().map(|x| if x.is_nan() { f32::NAN } else { *x }).collect::<Vec<_>>();
            self.compare("apply", &number(&got), &number(&want));
        }
        Ok(())
    }

    pub(in super::super) fn elementwise(&mut self) -> Result<(), GpuError> {
        for (rows, dim) in [(1, 1), (3, 257), (5, 64)] {
            let (x, delta) = (numbers(rows * dim, 1), numbers(rows * dim, 2));
            for period in [dim, rows * dim] {
                let (dx, dd) = (self.gpu.upload(&x)?, self.gpu.upload(&delta[..period])?);
                let a = AddArgs { len: x.len() as u32, period: period as u32 };
                Add { x: dx.output(), delta: dd.input(), a }.dispatch(
                    self.gpu,
                    groups(x.len(), ELEMENTS_THREADS),
                    ELEMENTS_THREADS,
                )?;
                let mut want = x.clone();
                self.host(|pool| elementwise::add_bias(pool, &mut want, &delta[..period]));
                self.compare("add", &self.gpu.read(&dx, 0, x.len())?, &want);
            }
            let gate_up = numbers(2 * rows * dim, 3);
            let (dg, out) = (self.gpu.upload(&gate_up)?, self.gpu.alloc(rows * dim)?);
            let a = SwigluArgs { rows: rows as u32, dim: dim as u32 };
            let grid = groups(rows * dim, ELEMENTS_THREADS);
            Swiglu { gate_up: dg.input(), out: out.output(), a }.dispatch(self.gpu, grid, ELEMENTS_THREADS)?;
            let mut want = vec![0.0; rows * dim];
            self.host(|pool| elementwise::silu_mul(pool, &gate_up, rows, &mut want));
            self.compare("swiglu", &self.gpu.read(&out, 0, rows * dim)?, &want);

            let (x_at, gate_at) = (Layout::heads(rows, 2, dim), Layout::heads(rows, 2, dim).strided(4 * dim + 1));
            let (x, gate) = (numbers(2 * rows * dim, 4), numbers(rows * (4 * dim + 1) + dim, 5));
            let (dx, dg) = (self.gpu.upload(&x)?, self.gpu.upload(&gate)?);
            let a = SigmoidGateArgs { vectors: 2 * rows as u32, dim: dim as u32, x: place(0, x_at), gate: place(dim, gate_at) };
            let grid = groups(x.len(), ELEMENTS_THREADS);
            SigmoidGate { x: dx.output(), gate: dg.input(), a }.dispatch(self.gpu, grid, ELEMENTS_THREADS)?;
            let mut want = x.clone();
            self.host(|pool| elementwise::sigmoid_mul(pool, &mut want, x_at, &gate[dim..], gate_at));
            self.compare("sigmoid_gate", &self.gpu.read(&dx, 0, x.len())?, &want);
        }
        let (rows, heads, stride) = (7, 5, 23);
        let (ab, rate, bias) = (numbers(rows * stride, 6), numbers(heads, 7), numbers(heads, 8));
        let neg_a: Vec<f32> = rate.iter().map(|r| -r.abs()).collect();
        let (d_ab, d_rate, d_bias) = (self.gpu.upload(&ab)?, self.gpu.upload(&neg_a)?, self.gpu.upload(&bias)?);
        let (d_alpha, d_beta) = (self.gpu.alloc(rows * heads)?, self.gpu.alloc(rows * heads)?);
        let a = DeltaGateArgs { rows: rows as u32, heads: heads as u32, stride: stride as u32, a_first: 9, b_first: 2 };
        DeltaGates {
            rows: d_ab.input(),
            neg_a: d_rate.input(),
            dt_bias: d_bias.input(),
            alpha: d_alpha.output(),
            beta: d_beta.output(),
            a,
        }
        .dispatch(self.gpu, groups(rows * heads, ELEMENTS_THREADS), ELEMENTS_THREADS)?;
        let (mut alpha, mut beta) = (vec![0.0; rows * heads], vec![0.0; rows * heads]);
        let inputs = GateInputs { a: &ab[9..], b: &ab[2..], stride, rows };
        self.host(|pool| {
            elementwise::gdn_gates(pool, GateWeights { neg_a: &neg_a, dt_bias: &bias }, inputs, &mut alpha, &mut beta)
        });
        self.compare("delta_gates", &self.gpu.read(&d_alpha, 0, rows * heads)?, &alpha);
        self.compare("delta_gates", &self.gpu.read(&d_beta, 0, rows * heads)?, &beta);
        Ok(())
    }

    pub(in super::super) fn norms(&mut self) -> Result<(), GpuError> {
        for dim in [1, 60, 127, 128, 129, 1000] {
            let (rows, eps) = (3, 1e-6);
            let at = Layout { rows, row_stride: 2 * dim + 3, heads: 2, head_stride: dim, dim };
            let (x, scale) = (numbers(rows * at.row_stride, 1), numbers(dim, 2));
            let norm = norm::Norm { scale: &scale, eps };
            let (dx, ds, out) = (self.gpu.upload(&x)?, self.gpu.upload(&scale)?, self.gpu.alloc(2 * rows * dim)?);
            let dense = Layout::heads(rows, 2, dim);
            let a = NormArgs { dim: dim as u32, eps, x: place(0, at), y: place(0, dense) };
            let grid = [2 * rows as u32, 1, 1];
            RmsNorm { x: dx.input(), scale: ds.input(), y: out.output(), a }.dispatch(self.gpu, grid, FOLD_THREADS)?;
            let mut want = vec![0.0; 2 * rows * dim];
            self.host(|pool| norm::rms_norm(pool, &x, at, norm, &mut want));
            self.compare("rms_norm", &self.gpu.read(&out, 0, want.len())?, &want);

            RmsNormInPlace { x: dx.output(), scale: ds.input(), a }.dispatch(self.gpu, grid, FOLD_THREADS)?;
            let mut want = x.clone();
            self.host(|pool| norm::rms_norm_in_place(pool, &mut want, at, norm));
            self.compare("rms_norm_in_place", &self.gpu.read(&dx, 0, x.len())?, &want);

            let dx = self.gpu.upload(&x)?;
            let unit = UnitArgs { dim: dim as u32, scale: 0.25, x: place(0, at) };
            UnitNorm { x: dx.output(), a: unit }.dispatch(self.gpu, grid, FOLD_THREADS)?;
            let mut want = x.clone();
            self.host(|pool| norm::l2_normalise(pool, &mut want, at, 0.25));
            self.compare("unit_norm", &self.gpu.read(&dx, 0, x.len())?, &want);

            let (o, z) = (numbers(2 * rows * dim, 3), numbers(rows * at.row_stride, 4));
            let (d_o, dz) = (self.gpu.upload(&o)?, self.gpu.upload(&z)?);
            let a = GatedNormArgs { dim: dim as u32, eps, o: place(0, dense), z: place(0, at) };
            GatedNorm { o: d_o.output(), z: dz.input(), scale: ds.input(), a }.dispatch(self.gpu, grid, FOLD_THREADS)?;
            let mut want = o.clone();
            self.host(|pool| norm::gated_norm(pool, &mut want, dense, norm, &z, at));
            self.compare("gated_norm", &self.gpu.read(&d_o, 0, o.len())?, &want);

            let (x, delta) = (numbers(rows * dim, 5), numbers(rows * dim, 6));
            let (dx, dd, out) = (self.gpu.upload(&x)?, self.gpu.upload(&delta)?, self.gpu.alloc(rows * dim)?);
            let a = AddNormArgs { dim: dim as u32, eps };
            AddRmsNorm { x: dx.output(), delta: dd.input(), scale: ds.input(), y: out.output(), a }.dispatch(
                self.gpu,
                [rows as u32, 1, 1],
                FOLD_THREADS,
            )?;
            let (mut sum, mut want) = (x.clone(), vec![0.0; rows * dim]);
            self.host(|pool| norm::add_rms_norm(pool, &mut sum, &delta, norm, &mut want));
            self.compare("add_rms_norm", &self.gpu.read(&dx, 0, x.len())?, &sum);
            self.compare("add_rms_norm", &self.gpu.read(&out, 0, x.len())?, &want);
        }
        Ok(())
    }

    pub(super) fn rope(&mut self) -> Result<(), GpuError> {
        let (rows, heads, dim, pairs, positions) = (4, 3, 20, 6, 50);
        let at = Layout { rows, row_stride: 70, heads, head_stride: 22, dim };
        let frequencies: Vec<f64> = (0..pairs).map(|i| 10000f64.powf(-2.0 * i as f64 / (2 * pairs) as f64)).collect();
        let angles: Vec<f64> = (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f64 * f)).collect();
        let (cosines, sines): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos() as f32, a.sin() as f32)).unzip();
        let (x, of_rows) = (numbers(rows * 70 + 4, 1), [49u32, 0, 7, 7]);
        let (dx, dc, ds, dp) =
            (self.gpu.upload(&x)?, self.gpu.upload(&cosines)?, self.gpu.upload(&sines)?, self.gpu.upload(&of_rows)?);
        let a = RopeArgs { vectors: (rows * heads) as u32, pairs: pairs as u32, x: place(4, at) };
        Rope { x: dx.output(), cosines: dc.input(), sines: ds.input(), positions: dp.input(), a }.dispatch(
            self.gpu,
            groups(rows * heads * pairs, ROPE_THREADS),
            ROPE_THREADS,
        )?;
        let mut want = x.clone();
        let table = rope::Table::from_frequencies(positions, &frequencies);
        self.host(|pool| table.apply(pool, &mut want[4..], at, &of_rows));
        self.compare("rope", &self.gpu.read(&dx, 0, x.len())?, &want);
        Ok(())
    }

    pub(super) fn moves(&mut self) -> Result<(), GpuError> {
        let (width, x) = (37, numbers(9 * 37, 1));
        let (dx, dp, out) = (self.gpu.upload(&x)?, self.gpu.upload(&[8u32, 0, 3])?, self.gpu.alloc(4 * width)?);
        let a = GatherArgs { width: width as u32, rows: 3, to_row: 1 };
        GatherRows { from: dx.input(), indices: dp.input(), to: out.output(), a }.dispatch(
            self.gpu,
            groups(3 * width, ROWS_THREADS),
            ROWS_THREADS,
        )?;
        let want: Vec<f32> =
            vec![0.0; width].into_iter().chain([8, 0, 3].iter().flat_map(|r| x[r * width..][..width].to_vec())).collect();
        self.compare("gather_rows", &self.gpu.read(&out, 0, 4 * width)?, &want);

        let out = self.gpu.alloc(9 * 50)?;
        let a = CopyArgs { rows: 9, width: 30, from_first: 5, from_stride: 37, to_first: 11, to_stride: 50 };
        CopyRows { from: dx.input(), to: out.output(), a }.dispatch(self.gpu, groups(9 * 30, ROWS_THREADS), ROWS_THREADS)?;
        let mut want = vec![0.0; 9 * 50];
        // The last row's copy ends with the buffer.
        (0..9).for_each(|r| want[11 + r * 50..][..30].copy_from_slice(&x[5 + r * 37..][..30]));
        self.compare("copy_rows", &self.gpu.read(&out, 0, 9 * 50)?, &want);
        Ok(())
    }
}
