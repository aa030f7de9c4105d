//! Attention against its written order; committed against staged keys; every row count, cache type and instruction set.

use super::*;
use crate::kernels::cases::{assert_bits, numbers, path, pools, tree};
use crate::kernels::kv::KvType;
use crate::kernels::math::exp;
use half::bf16;

/// The law for one query over its visible keys and values, in the order of their positions.
fn law(q: &[f32], keys: &[&[f32]], values: &[&[f32]]) -> Vec<f32> {
    let scale = 1.0 / (q.len() as f32).sqrt();
    let scores: Vec<f32> = keys.iter().map(|k| q.iter().zip(*k).fold(0f32, |s, (q, k)| (q * scale).mul_add(*k, s))).collect();
    let blocks: Vec<_> = scores
        .chunks(64)
        .zip(values.chunks(64))
        .map(|(s, v)| {
            let m = s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let p: Vec<f32> = s.iter().map(|s| exp(s - m)).collect();
            let l = p.iter().fold(0f32, |l, p| l + p);
            let o: Vec<f32> = (0..q.len()).map(|d| p.iter().zip(v).fold(0f32, |o, (p, v)| p.mul_add(v[d], o))).collect();
            (m, l, o)
        })
        .collect();
    let highest = blocks.iter().map(|b| b.0).fold(f32::NEG_INFINITY, f32::max);
    let total = blocks.iter().fold(0f32, |sum, (m, l, _)| l.mul_add(exp(m - highest), sum));
    (0..q.len()).map(|d| blocks.iter().fold(0f32, |o, (m, _, b)| b[d].mul_add(exp(m - highest), o)) / total).collect()
}

struct Case {
    at: Layout,
    kv_at: Layout,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    past: (Vec<f32>, Vec<f32>),
    committed: usize,
    kv_type: KvType,
}

impl Case {
    fn new((heads, kv_heads, dim): (usize, usize, usize), committed: usize, rows: usize, kv_type: KvType) -> Self {
        let at = Layout { rows, row_stride: 2 * heads * dim + 3, heads, head_stride: 2 * dim, dim };
        let kv_at = Layout::heads(rows, kv_heads, dim).strided(kv_heads * dim + 7);
        let past = |seed| numbers(committed * kv_heads * dim, seed);
        let (k, v) = (numbers(rows * kv_at.row_stride, 2), numbers(rows * kv_at.row_stride, 3));
        Self { at, kv_at, q: numbers(rows * at.row_stride, 1), k, v, past: (past(4), past(5)), committed, kv_type }
    }

    fn rounded(&self, x: &[f32]) -> Vec<f32> {
        x.iter().map(|&x| if self.kv_type == KvType::Bf16 { bf16::from_f32(x).to_f32() } else { x }).collect()
    }

    fn cache(&self) -> KvCache {
        let (heads, head_dim) = (self.kv_at.heads, self.kv_at.dim);
        let shape = KvShape { heads, head_dim, capacity: self.committed + self.at.rows, staged: self.at.rows };
        let mut cache = KvCache::new(shape, self.kv_type);
        cache.append(&self.past.0, &self.past.1, Layout::heads(self.committed, heads, head_dim));
        cache
    }

    /// Outputs when row r sees `committed` past positions and then the rows `seen(r)`.
    fn law(&self, seen: impl Fn(usize) -> Vec<usize>) -> Vec<f32> {
        let (pk, pv) = (self.rounded(&self.past.0), self.rounded(&self.past.1));
        let (k, v) = (self.rounded(&self.k), self.rounded(&self.v));
        let mut out = vec![];
        for i in 0..self.at.vectors() {
            let (row, head) = (i / self.at.heads, i % self.at.heads / (self.at.heads / self.kv_at.heads));
            let of = |past: &[f32], new: &[f32]| -> Vec<Vec<f32>> {
                let vectors = past.chunks(self.kv_at.dim).skip(head).step_by(self.kv_at.heads).map(<[f32]>::to_vec);
                let staged = seen(row).into_iter().map(|r| new[self.kv_at.range(r * self.kv_at.heads + head)].to_vec());
                vectors.chain(staged).collect()
            };
            let (keys, values) = (of(&pk, &k), of(&pv, &v));
            let slices = |x: &[Vec<f32>]| x.iter().map(|x| x.as_slice().to_vec()).collect::<Vec<_>>();
            let (keys, values) = (slices(&keys), slices(&values));
            let (keys, values): (Vec<&[f32]>, Vec<&[f32]>) =
                (keys.iter().map(Vec::as_slice).collect(), values.iter().map(Vec::as_slice).collect());
            out.extend(law(&self.q[self.at.range(i)], &keys, &values));
        }
        out
    }

    fn run(&self, pool: &Pool, cache: &KvCache, mask: &Mask, turn: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.at.vectors() * self.at.dim];
        let mut scratch = vec![f32::NAN; scratch_len(cache.shape(), self.at.heads, turn)];
        attend(pool, cache, &self.q, self.at, mask, &mut out, &mut scratch);
        out
    }
}

const HEADS: [(usize, usize, usize); 4] = [(1, 1, 3), (4, 2, 16), (6, 1, 40), (8, 2, 64)];

#[test]
fn tree_rows_see_the_past_and_their_path_and_nothing_else() {
    for (i, heads) in HEADS.into_iter().enumerate() {
        for (committed, rows) in [(0, 5), (1, 1), (60, 9), (63, 2), (64, 33), (65, 3), (190, 17)] {
            for kv_type in [KvType::F32, KvType::Bf16] {
                let case = Case::new(heads, committed, rows, kv_type);
                let parents = tree(rows, i as u32 + 3);
                let want = case.law(|r| path(&parents, r));
                let mut mask = Mask::default();
                (0..rows).for_each(|r| mask.push(committed, path(&parents, r)));
                for pool in pools() {
                    let mut cache = case.cache();
                    cache.stage(0, &case.k, &case.v, case.kv_at);
                    for turn in [1, 4, rows] {
                        let out = case.run(&pool, &cache, &mask, turn);
                        assert_bits(&out, &want, &pool, &format!("{heads:?}, {committed} committed, {rows} rows, {turn} a turn"));
                    }
                }
            }
        }
    }
}

#[test]
fn prefill_from_the_cache_equals_staged_chains_and_commit_equals_append() {
    for kv_type in [KvType::F32, KvType::Bf16] {
        let (committed, rows) = (55, 33);
        let case = Case::new((4, 2, 16), committed, rows, kv_type);
        let want = case.law(|r| (0..=r).collect());
        for pool in pools() {
            let (mut staged, mut appended) = (case.cache(), case.cache());
            staged.stage(0, &case.k, &case.v, case.kv_at);
            appended.append(&case.k, &case.v, case.kv_at);
            let (mut chain, mut prefix) = (Mask::default(), Mask::default());
            (0..rows).for_each(|r| chain.push(committed, 0..=r));
            (0..rows).for_each(|r| prefix.push(committed + r + 1, []));
            assert_bits(&case.run(&pool, &staged, &chain, rows), &want, &pool, "staged");
            assert_bits(&case.run(&pool, &appended, &prefix, rows), &want, &pool, "appended");
            staged.commit(&(0..rows).collect::<Vec<_>>());
            assert_eq!(staged.len(), appended.len());
            assert_bits(&case.run(&pool, &staged, &prefix, 5), &want, &pool, "committed");
            staged.truncate(committed);
            staged.stage(0, &case.k, &case.v, case.kv_at);
            assert_bits(&case.run(&pool, &staged, &chain, rows), &want, &pool, "after truncation");
        }
    }
}

#[test]
fn a_block_of_rows_may_see_all_of_itself_and_rows_may_be_staged_in_turns() {
    let (committed, rows) = (70, 16);
    let case = Case::new((4, 4, 32), committed, rows, KvType::Bf16);
    let want = case.law(|_| (0..rows).collect());
    let mut mask = Mask::with_capacity(rows, rows * rows);
    (0..rows).for_each(|_| mask.push(committed, 0..rows));
    for pool in pools() {
        let mut cache = case.cache();
        for first in [0, 6, 11] {
            let n = [6, 5, 5][first / 5];
            let from = first * case.kv_at.row_stride;
            cache.stage(first, &case.k[from..], &case.v[from..], Layout { rows: n, ..case.kv_at });
        }
        assert_bits(&case.run(&pool, &cache, &mask, rows), &want, &pool, "block");
    }
}

#[test]
fn a_sibling_moves_no_bit_and_large_scores_do_not_overflow() {
    let mut case = Case::new((2, 1, 16), 10, 3, KvType::F32);
    case.q.iter_mut().for_each(|q| *q *= 1e4);
    let mut mask = Mask::default();
    [vec![0], vec![0, 1], vec![0, 2]].into_iter().for_each(|p| mask.push(10, p));
    let pool = Pool::new(2);
    let run = |case: &Case| {
        let mut cache = case.cache();
        cache.stage(0, &case.k, &case.v, case.kv_at);
        case.run(&pool, &cache, &mask, 3)
    };
    let before = run(&case);
    assert!(before.iter().all(|x| x.is_finite()));
    case.v[case.kv_at.row_stride..2 * case.kv_at.row_stride].fill(100.0);
    case.k[case.kv_at.row_stride..2 * case.kv_at.row_stride].fill(100.0);
    let after = run(&case);
    assert_eq!((&before[..32], &before[64..]), (&after[..32], &after[64..]));
    assert_ne!(before[32..64], after[32..64]);
}
