//! Cases of the kernels that follow a tree: convolution, the delta rule's scan, the key/value cache and attention.

use super::super::*;
use super::{Cases, groups, numbers, path, tree};
use crate::kernels::conv::{Conv as HostConv, RawRows};
use crate::kernels::{KvCache, KvShape, KvType, Layout, Mask, Topology, Walk, attention, gdn};
use half::bf16;
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
            let name = if key_dim == 128 {
                GdnVerify128 {
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
                .dispatch(gpu, grid, GDN_THREADS)?;
                "gdn_verify_128"
            } else {
                GdnVerifyAny {
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
                .dispatch(gpu, grid, GDN_THREADS)?;
                "gdn_verify_any"
            };
            let mut walk = Walk::default();
            walk.plan(&parents);
            let mut want = vec![0.0; rows * values];
            let mut scratch = vec![0.0; gdn::scratch_len(&self.pool, &d, walk.slots())];
            self.host(|pool| gdn::verify(pool, &d, &state, inputs, &walk, &mut want, &mut scratch));
            let got = self.gpu.read(&out, 0, want.len())?;
            self.compare(name, &got, &want);

            // Commit of the path to the last row.
            let path = path(&parents, rows - 1);
            let chain: Vec<i32> =
                path.iter().enumerate().flat_map(|(i, &r)| [r as i32, if i == 0 { -2 } else { -1 }, -1, 0]).collect();
            let (d_steps, d_spans) = (gpu.upload(&chain)?, gpu.upload(&[0u32, path.len() as u32])?);
            let (s, sp, state_out, unused) = (d_steps.input(), d_spans.input(), d_state.output(), gpu.alloc::<f32>(1)?);
            let name = if key_dim == 128 {
                GdnAdvance128 { state: state_out, qkv, alpha: al, beta: be, steps: s, spans: sp, out: unused.output(), a }
                    .dispatch(gpu, grid, GDN_THREADS)?;
                "gdn_advance_128"
            } else {
                GdnAdvanceAny { state: state_out, qkv, alpha: al, beta: be, steps: s, spans: sp, out: unused.output(), a }
                    .dispatch(gpu, grid, GDN_THREADS)?;
                "gdn_advance_any"
            };
            let mut want = state.clone();
            let rows_of = gdn::Rows::Path(&path);
            self.host(|pool| gdn::advance(pool, &d, &mut want, inputs, rows_of, None, &mut scratch));
            let got = self.gpu.read(&d_state, 0, want.len())?;
            self.compare(name, &got, &want);
        }
        Ok(())
    }

    pub(super) fn attention(&mut self) -> Result<(), GpuError> {
        for (committed, rows, head_dim) in [(0, 1, 16), (63, 3, 48), (130, 9, 16), (190, 33, 128)] {
            self.attend::<f32>((committed, rows, head_dim), KvType::F32)?;
            self.attend::<bf16>((committed, rows, head_dim), KvType::Bf16)?;
        }
        Ok(())
    }

    fn attend<T: Element + Cached>(&mut self, (committed, rows, dim): (usize, usize, usize), kv: KvType) -> Result<(), GpuError> {
        let (gpu, heads, kv_heads) = (self.gpu, 4, 2);
        let shape = KvShape { heads: kv_heads, head_dim: dim, capacity: committed + rows + 70, staged: rows };
        let (blocks, padded) = (shape.capacity.div_ceil(64), rows.next_multiple_of(16));
        let stride = 2 * kv_heads * dim;
        let at = Layout::heads(committed.max(1), kv_heads, dim).strided(stride);
        let (old, new) = (numbers(committed.max(1) * stride, 1), numbers(rows * stride, 2));
        let (q, parents) = (numbers(rows * heads * dim, 3), tree(rows, 4));

        let mut cache = KvCache::new(shape, kv);
        let v_first = kv_heads * dim;
        if committed > 0 {
            cache.append(&old, &old[v_first..], at);
        }
        cache.stage(0, &new, &new[v_first..], Layout { rows, ..at });
        let mut mask = Mask::default();
        let (mut table, mut list) = (vec![], vec![]);
        for row in 0..rows {
            let path = path(&parents, row);
            table.extend([committed as u32, list.len() as u32, path.len() as u32]);
            list.extend(path.iter().map(|&r| r as u32));
            mask.push(committed, path);
        }

        let cells = |positions: usize| kv_heads * dim * positions;
        let (keys, values) = (gpu.alloc::<T>(cells(blocks * 64))?, gpu.alloc::<T>(cells(blocks * 64))?);
        let (staged_keys, staged_values) = (gpu.alloc::<T>(cells(padded))?, gpu.alloc::<T>(cells(rows))?);
        let put = |rows: usize| KvPutArgs {
            rows: rows as u32,
            heads: kv_heads as u32,
            dim: dim as u32,
            stride: stride as u32,
            k_first: 0,
            v_first: v_first as u32,
            first: 0,
            blocks: blocks as u32,
            staged: shape.staged as u32,
            staged_padded: padded as u32,
        };
        let (d_old, d_new) = (gpu.upload(&old)?, gpu.upload(&new)?);
        T::append(gpu, &d_old, (&keys, &values), put(committed))?;
        T::stage(gpu, &d_new, (&staged_keys, &staged_values), put(rows))?;
        let (d_q, d_rows, d_list) = (gpu.upload(&q)?, gpu.upload(&table)?, gpu.upload(&list)?);
        let part_blocks = (committed + rows).div_ceil(64);
        let a = AttendArgs {
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            dim: dim as u32,
            first_row: 0,
            blocks: blocks as u32,
            staged: shape.staged as u32,
            staged_padded: padded as u32,
            part_blocks: part_blocks as u32,
            q: Place { first: 0, row_stride: (heads * dim) as u32, heads: heads as u32, head_stride: dim as u32 },
        };
        let parts = gpu.alloc::<f32>(rows * heads * part_blocks * (dim + 2))?;
        let grid = [part_blocks as u32, heads as u32, rows as u32];
        T::attend(gpu, &d_q, [&keys, &values, &staged_keys, &staged_values], (&d_rows, &d_list), &parts, a, grid)?;
        let out = gpu.alloc::<f32>(rows * heads * dim)?;
        AttendCombine { parts: parts.input(), rows: d_rows.input(), out: out.output(), a }.dispatch(
            gpu,
            [heads as u32, rows as u32, 1],
            ATTEND_THREADS,
        )?;
        let attended = |case: &Self, cache: &KvCache, mask: &Mask, q: &[f32], rows: usize| {
            let mut want = vec![0.0; rows * heads * dim];
            let mut scratch = vec![0.0; attention::scratch_len(shape, heads, rows)];
            case.host(|pool| attention::attend(pool, cache, q, Layout::heads(rows, heads, dim), mask, &mut want, &mut scratch));
            want
        };
        let want = attended(self, &cache, &mask, &q, rows);
        let got = gpu.read(&out, 0, want.len())?;
        let names = T::NAMES;
        self.compare(names[0], &got, &want);
        self.compare("attend_combine", &got, &want);
        self.compare(names[1], &got, &want);
        self.compare(names[2], &got, &want);

        // Committed, the path to the last row gives what it gave staged.
        let path = path(&parents, rows - 1);
        let d_path = gpu.upload(&path.iter().map(|&r| r as u32).collect::<Vec<_>>())?;
        let commit = KvCommitArgs {
            path_len: path.len() as u32,
            heads: kv_heads as u32,
            dim: dim as u32,
            first: committed as u32,
            blocks: blocks as u32,
            staged: shape.staged as u32,
            staged_padded: padded as u32,
        };
        T::commit(gpu, &d_path, (&staged_keys, &staged_values), (&keys, &values), commit)?;
        cache.commit(&path);
        let (last, visible) = (&q[(rows - 1) * heads * dim..], committed + path.len());
        let (d_q, d_rows) = (gpu.upload(last)?, gpu.upload(&[visible as u32, 0, 0])?);
        T::attend(
            gpu,
            &d_q,
            [&keys, &values, &staged_keys, &staged_values],
            (&d_rows, &d_list),
            &parts,
            a,
            [part_blocks as u32, heads as u32, 1],
        )?;
        AttendCombine { parts: parts.input(), rows: d_rows.input(), out: out.output(), a }.dispatch(
            gpu,
            [heads as u32, 1, 1],
            ATTEND_THREADS,
        )?;
        let mut mask = Mask::default();
        mask.push(visible, []);
        let want = attended(self, &cache, &mask, last, 1);
        let got = gpu.read(&out, 0, want.len())?;
        self.compare(names[3], &got, &want);
        Ok(())
    }
}

/// A cache's number types, each with kernels of its own.
trait Cached: Sized {
    /// attend, append, stage, commit.
    const NAMES: [&'static str; 4];
    fn append(gpu: &Gpu, rows: &Array<f32>, to: (&Array<Self>, &Array<Self>), a: KvPutArgs) -> Result<(), GpuError>;
    fn stage(gpu: &Gpu, rows: &Array<f32>, to: (&Array<Self>, &Array<Self>), a: KvPutArgs) -> Result<(), GpuError>;
    fn commit(
        gpu: &Gpu,
        path: &Array<u32>,
        from: (&Array<Self>, &Array<Self>),
        to: (&Array<Self>, &Array<Self>),
        a: KvCommitArgs,
    ) -> Result<(), GpuError>;
    fn attend(
        gpu: &Gpu,
        q: &Array<f32>,
        cache: [&Array<Self>; 4],
        mask: (&Array<u32>, &Array<u32>),
        parts: &Array<f32>,
        a: AttendArgs,
        grid: [u32; 3],
    ) -> Result<(), GpuError>;
}

macro_rules! cached {
    ($t:ty, $append:ident, $stage:ident, $commit:ident, $attend:ident, $names:expr) => {
        impl Cached for $t {
            const NAMES: [&'static str; 4] = $names;
            fn append(
                gpu: &Gpu,
                rows: &Array<f32>,
                (keys, values): (&Array<Self>, &Array<Self>),
                a: KvPutArgs,
            ) -> Result<(), GpuError> {
                $append { rows: rows.input(), keys: keys.output(), values: values.output(), a }.dispatch(
                    gpu,
                    groups((a.rows * a.heads * a.dim) as usize, KV_THREADS),
                    KV_THREADS,
                )
            }
            fn stage(
                gpu: &Gpu,
                rows: &Array<f32>,
                (keys, values): (&Array<Self>, &Array<Self>),
                a: KvPutArgs,
            ) -> Result<(), GpuError> {
                $stage { rows: rows.input(), keys: keys.output(), values: values.output(), a }.dispatch(
                    gpu,
                    groups((a.rows * a.heads * a.dim) as usize, KV_THREADS),
                    KV_THREADS,
                )
            }
            fn commit(
                gpu: &Gpu,
                path: &Array<u32>,
                from: (&Array<Self>, &Array<Self>),
                to: (&Array<Self>, &Array<Self>),
                a: KvCommitArgs,
            ) -> Result<(), GpuError> {
                let (staged_keys, staged_values) = (from.0.input(), from.1.input());
                $commit { path: path.input(), staged_keys, staged_values, keys: to.0.output(), values: to.1.output(), a }
                    .dispatch(gpu, groups((a.path_len * a.heads * a.dim) as usize, KV_THREADS), KV_THREADS)
            }
            fn attend(
                gpu: &Gpu,
                q: &Array<f32>,
                cache: [&Array<Self>; 4],
                (rows, list): (&Array<u32>, &Array<u32>),
                parts: &Array<f32>,
                a: AttendArgs,
                grid: [u32; 3],
            ) -> Result<(), GpuError> {
                let [keys, values, staged_keys, staged_values] = cache.map(|c| c.input());
                let (rows, list, parts) = (rows.input(), list.input(), parts.output());
                $attend { q: q.input(), keys, values, staged_keys, staged_values, rows, list, parts, a }.dispatch(
                    gpu,
                    grid,
                    ATTEND_THREADS,
                )
            }
        }
    };
}
cached!(
    f32,
    KvAppendF32,
    KvStageF32,
    KvCommitF32,
    AttendBlocksF32,
    ["attend_blocks_f32", "kv_append_f32", "kv_stage_f32", "kv_commit_f32"]
);
cached!(
    bf16,
    KvAppendBf16,
    KvStageBf16,
    KvCommitBf16,
    AttendBlocksBf16,
    ["attend_blocks_bf16", "kv_append_bf16", "kv_stage_bf16", "kv_commit_bf16"]
);
