//! Cases of the key/value cache and of attention along a tree: what the cache holds is read back and compared by itself.

use super::super::*;
use super::{Cases, groups, numbers, path, tree};
use crate::kernels::{KvCache, KvShape, KvType, Layout, Mask, attention};
use half::bf16;

impl Cases<'_> {
    pub(in super::super) fn attention(&mut self) -> Result<(), GpuError> {
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
        // Rows `from..to` of an array.
        let put = |from: usize, to: usize| KvPutArgs {
            rows: (to - from) as u32,
            heads: kv_heads as u32,
            dim: dim as u32,
            stride: stride as u32,
            k_first: (from * stride) as u32,
            v_first: (from * stride + v_first) as u32,
            first: from as u32,
            blocks: blocks as u32,
            staged: shape.staged as u32,
            staged_padded: padded as u32,
        };
        let (d_old, d_new) = (gpu.upload(&old)?, gpu.upload(&new)?);
        let names = T::NAMES;
        let mut want = Image::new::<T>(&old, committed, (kv_heads, dim, stride), blocks);
        if committed > 0 {
            let half = committed / 2;
            T::append(gpu, &d_old, (&keys, &values), put(0, half))?;
            T::append(gpu, &d_old, (&keys, &values), put(half, committed))?;
            self.compare(names[1], &read(gpu, &keys)?, &want.keys);
            self.compare(names[1], &read(gpu, &values)?, &want.values);
        }
        let half = rows / 2;
        T::stage(gpu, &d_new, (&staged_keys, &staged_values), put(0, half))?;
        T::stage(gpu, &d_new, (&staged_keys, &staged_values), put(half, rows))?;
        let cell = |row: usize, head: usize, d: usize| row * stride + head * dim + d;
        let staged = |positions: usize, element: &dyn Fn(usize, usize, usize) -> f32| -> Vec<f32> {
            (0..cells(positions)).map(|i| element(i / (dim * positions), i / positions % dim, i % positions)).collect()
        };
        let want_keys = staged(padded, &|h, d, r| if r < rows { T::rounded(new[cell(r, h, d)]) } else { 0.0 });
        let want_values: Vec<f32> =
            (0..cells(rows)).map(|i| T::rounded(new[v_first + cell(i / dim % rows, i / (dim * rows), i % dim)])).collect();
        self.compare(names[2], &read(gpu, &staged_keys)?, &want_keys);
        self.compare(names[2], &read(gpu, &staged_values)?, &want_values);
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
        let all = attended(self, &cache, &mask, &q, rows);
        let got = gpu.read(&out, 0, all.len())?;
        self.compare(names[0], &got, &all);
        self.compare("attend_combine", &got, &all);

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
        path.iter().enumerate().for_each(|(i, &row)| want.put::<T>(&new[row * stride..], committed + i));
        self.compare(names[3], &read(gpu, &keys)?, &want.keys);
        self.compare(names[3], &read(gpu, &values)?, &want.values);
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
        let all = attended(self, &cache, &mask, last, 1);
        let got = gpu.read(&out, 0, all.len())?;
        self.compare(names[0], &got, &all);
        Ok(())
    }
}

/// What the cache must hold, zero where nothing was written: keys `[head][block][d][64]`, values `[head][position][d]`.
struct Image {
    keys: Vec<f32>,
    values: Vec<f32>,
    heads: usize,
    dim: usize,
    blocks: usize,
}

impl Image {
    /// `rows` rows of keys and then values, `stride` floats apart, from position 0 on.
    fn new<T: Cached>(data: &[f32], rows: usize, (heads, dim, stride): (usize, usize, usize), blocks: usize) -> Self {
        let empty = vec![0.0; heads * dim * blocks * 64];
        let mut image = Self { keys: empty.clone(), values: empty, heads, dim, blocks };
        (0..rows).for_each(|row| image.put::<T>(&data[row * stride..], row));
        image
    }

    fn put<T: Cached>(&mut self, row: &[f32], position: usize) {
        for head in 0..self.heads {
            for d in 0..self.dim {
                let from = head * self.dim + d;
                self.keys[((head * self.blocks + position / 64) * self.dim + d) * 64 + position % 64] = T::rounded(row[from]);
                self.values[(head * self.blocks * 64 + position) * self.dim + d] = T::rounded(row[self.heads * self.dim + from]);
            }
        }
    }
}

/// All elements, exactly.
fn read<T: Element + Cached>(gpu: &Gpu, array: &Array<T>) -> Result<Vec<f32>, GpuError> {
    Ok(gpu.read(array, 0, array.len())?.into_iter().map(T::float).collect())
}

/// A cache's number types, each with kernels of its own.
trait Cached: Sized {
    /// attend, append, stage, commit.
    const NAMES: [&'static str; 4];
    /// Exactly.
    fn float(self) -> f32;
    /// What the cache keeps of a number.
    fn rounded(x: f32) -> f32;
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
    ($t:ty, $round:expr, $append:ident, $stage:ident, $commit:ident, $attend:ident, $names:expr) => {
        impl Cached for $t {
            const NAMES: [&'static str; 4] = $names;
            fn float(self) -> f32 {
                f32::from(self)
            }
            fn rounded(x: f32) -> f32 {
                f32::from($round(x))
            }
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
    std::convert::identity::<f32>,
    KvAppendF32,
    KvStageF32,
    KvCommitF32,
    AttendBlocksF32,
    ["attend_blocks_f32", "kv_append_f32", "kv_stage_f32", "kv_commit_f32"]
);
cached!(
    bf16,
    bf16::from_f32,
    KvAppendBf16,
    KvStageBf16,
    KvCommitBf16,
    AttendBlocksBf16,
    ["attend_blocks_bf16", "kv_append_bf16", "kv_stage_bf16", "kv_commit_bf16"]
);
