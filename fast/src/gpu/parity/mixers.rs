//! Cases of the recurrent kernels that follow a tree: convolution and the delta rule's scan.

use super::super::*;
use super::{Cases, groups, numbers, path, tree};
use crate::kernels::conv::{Conv as HostConv, RawRows};
use crate::kernels::{Topology, Walk, gdn};
use specdec::GdnDims;

/// Steps of a depth-first walk as `gdn.metal` reads them, and the slots that its stash needs: a row whose children do not
/// all follow it at once is saved in a slot of its own.
fn steps(parents: &[Option<usize>]) -> (Vec<i32>, usize) {
    let children = |of: Option<usize>| (0..parents.len()).filter(move |&c| parents[c] == of);
    let (mut order, mut stack) = (vec![], children(None).rev_vec());
    while let Some(row) = stack.pop() {
        order.push(row);
        stack.extend(children(Some(row)).rev_vec());
    }
    let follows = |i: usize| i > 0 && parents[order[i]] == Some(order[i - 1]);
    let mut slot = vec![-1; parents.len()];
    let mut slots = 0;
    for i in (0..order.len()).filter(|&i| !follows(i)) {
        if let Some(parent) = parents[order[i]].filter(|&p| slot[p] < 0) {
            slot[parent] = slots;
            slots += 1;
        }
    }
    let source = |i: usize| match parents[order[i]] {
        _ if follows(i) => -1,
        None => -2,
        Some(parent) => slot[parent],
    };
    let steps = (0..order.len()).flat_map(|i| [order[i] as i32, source(i), slot[order[i]], 1]).collect();
    (steps, slots as usize)
}

trait Reversed {
    fn rev_vec(self) -> Vec<usize>;
}

impl<I: DoubleEndedIterator<Item = usize>> Reversed for I {
    fn rev_vec(self) -> Vec<usize> {
        self.rev().collect()
    }
}

impl Cases<'_> {
    pub(in super::super) fn convolution(&mut self) -> Result<(), GpuError> {
        let (channels, stride) = (300, 311);
        for (rows, taps) in [(1, 4), (9, 4), (33, 2), (5, 8)] {
            let (raw, tail, weights) =
                (numbers(rows * stride, 1), numbers((taps - 1) * channels, 2), numbers(channels * taps, 3));
            let parents = tree(rows, 4);
            let host = HostConv::new(&weights, channels, taps);
            let of_taps: Vec<f32> =
                (0..taps).flat_map(|t| (0..channels).map(|c| weights[c * taps + t]).collect::<Vec<_>>()).collect();
            let flat: Vec<i32> = parents.iter().map(|p| p.map_or(-1, |p| p as i32)).collect();
            let (d_raw, d_tail, d_weights, d_parents) =
                (self.gpu.upload(&raw)?, self.gpu.upload(&tail)?, self.gpu.upload(&of_taps)?, self.gpu.upload(&flat)?);
            let out = self.gpu.alloc(rows * channels)?;
            let a = ConvArgs { rows: rows as u32, channels: channels as u32, taps: taps as u32, stride: stride as u32 };
            Conv {
                raw: d_raw.input(),
                tail: d_tail.input(),
                weights: d_weights.input(),
                parents: d_parents.input(),
                out: out.output(),
                a,
            }
            .dispatch(self.gpu, groups(rows * channels, CONV_THREADS), CONV_THREADS)?;
            let mut want = vec![0.0; rows * channels];
            let rows_of = RawRows { data: &raw, stride, rows };
            self.host(|pool| host.forward(pool, &tail, rows_of, Topology::Tree(&parents), &mut want));
            self.compare("conv", &self.gpu.read(&out, 0, want.len())?, &want);

            let path = path(&parents, rows - 1);
            let d_path = self.gpu.upload(&path.iter().map(|&r| r as u32).collect::<Vec<_>>())?;
            let a =
                ConvKeepArgs { channels: channels as u32, taps: taps as u32, stride: stride as u32, path_len: path.len() as u32 };
            ConvKeep { tail: d_tail.output(), raw: d_raw.input(), path: d_path.input(), a }.dispatch(
                self.gpu,
                groups(channels, CONV_THREADS),
                CONV_THREADS,
            )?;
            let mut want = tail.clone();
            host.commit(&mut want, rows_of, path.iter().copied());
            self.compare("conv_keep", &self.gpu.read(&d_tail, 0, tail.len())?, &want);
        }
        Ok(())
    }

    pub(in super::super) fn delta_rule(&mut self) -> Result<(), GpuError> {
        for (key_dim, value_dim, rows) in [(128, 128, 9), (128, 40, 33), (50, 33, 17), (24, 32, 1)] {
            let d = GdnDims { key_heads: 2, value_heads: 4, key_dim, value_dim, conv_kernel: 4 };
            let (stride, values) = (d.conv_channels(), d.value_heads * value_dim);
            let keys = d.key_heads * key_dim;
            let small: Vec<f32> = numbers(rows * stride, 1).iter().map(|x| x * 0.2).collect();
            let unit = |seed| numbers(rows * d.value_heads, seed).iter().map(|x| (x.abs() * 0.3).min(1.0)).collect::<Vec<f32>>();
            let (state, alpha, beta) = (numbers(d.state_len(), 2), unit(3), unit(4));
            let inputs = gdn::Inputs { q: &small, k: &small[keys..], v: &small[2 * keys..], stride, alpha: &alpha, beta: &beta };
            let parents = tree(rows, 5);
            let (steps, slots) = steps(&parents);
            let a = GdnArgs {
                key_heads: d.key_heads as u32,
                value_heads: d.value_heads as u32,
                key_dim: key_dim as u32,
                value_dim: value_dim as u32,
                stride: stride as u32,
                k_first: keys as u32,
                v_first: 2 * keys as u32,
            };
            let gpu = self.gpu;
            let (d_state, d_qkv, d_alpha, d_beta) =
                (gpu.upload(&state)?, gpu.upload(&small)?, gpu.upload(&alpha)?, gpu.upload(&beta)?);
            let (d_steps, d_spans) = (gpu.upload(&steps)?, gpu.upload(&[0u32, rows as u32])?);
            let (stash, out) = (gpu.alloc::<f32>(slots * d.state_len())?, gpu.alloc::<f32>(rows * values)?);
            let grid = [value_dim.div_ceil(GDN_THREADS as usize) as u32, d.value_heads as u32, 1];
            let (state_in, qkv, al, be) = (d_state.input(), d_qkv.input(), d_alpha.input(), d_beta.input());
            let (s, sp) = (d_steps.input(), d_spans.input());
            macro_rules! verify {
                ($kernel:ident) => {
                    $kernel {
                        state: state_in,
                        qkv,
                        alpha: al,
                        beta: be,
                        steps: s,
                        spans: sp,
                        stash: stash.output(),
                        out: out.output(),
                        a,
                    }
                    .dispatch(gpu, grid, GDN_THREADS)?
                };
            }
            let name = if key_dim == 128 {
                verify!(GdnVerify128);
                "gdn_verify_128"
            } else {
                verify!(GdnVerifyAny);
                "gdn_verify_any"
            };
            let mut walk = Walk::default();
            walk.plan(&parents);
            let mut want = vec![0.0; rows * values];
            let mut scratch = vec![0.0; gdn::scratch_len(&self.pool, &d, walk.slots())];
            self.host(|pool| gdn::verify(pool, &d, &state, inputs, &walk, &mut want, &mut scratch));
            let got = self.gpu.read(&out, 0, want.len())?;
            self.compare(name, &got, &want);

            // Commit of the path to the last row, whose outputs prefill wants.
            let path = path(&parents, rows - 1);
            let chain: Vec<i32> =
                path.iter().enumerate().flat_map(|(i, &r)| [r as i32, if i == 0 { -2 } else { -1 }, -1, 1]).collect();
            let (d_steps, d_spans) = (gpu.upload(&chain)?, gpu.upload(&[0u32, path.len() as u32])?);
            let (s, sp, state_out, out) = (d_steps.input(), d_spans.input(), d_state.output(), gpu.alloc::<f32>(rows * values)?);
            macro_rules! advance {
                ($kernel:ident) => {
                    $kernel { state: state_out, qkv, alpha: al, beta: be, steps: s, spans: sp, out: out.output(), a }.dispatch(
                        gpu,
                        grid,
                        GDN_THREADS,
                    )?
                };
            }
            let name = if key_dim == 128 {
                advance!(GdnAdvance128);
                "gdn_advance_128"
            } else {
                advance!(GdnAdvanceAny);
                "gdn_advance_any"
            };
            // A row of the path gives the output that verification gave it.
            let outputs: Vec<f32> = (0..rows)
                .flat_map(|r| {
                    want[r * values..][..values].iter().map(|x| if path.contains(&r) { *x } else { 0.0 }).collect::<Vec<_>>()
                })
                .collect();
            self.compare(name, &gpu.read(&out, 0, rows * values)?, &outputs);
            let mut want = state.clone();
            let rows_of = gdn::Rows::Path(&path);
            self.host(|pool| gdn::advance(pool, &d, &mut want, inputs, rows_of, None, &mut scratch));
            let got = self.gpu.read(&d_state, 0, want.len())?;
            self.compare(name, &got, &want);
        }
        Ok(())
    }
}
