//! The delta rule against its written order; trees against chains; siblings apart; the committed state untouched.

use super::*;
use crate::kernels::cases::{assert_bits, between, numbers, path, pools, tree};
use crate::kernels::flush::FlushGuard;
use crate::kernels::pool::Pool;

const SHAPES: [GdnDims; 4] = [dims(1, 1, 5, 3), dims(2, 4, 16, 60), dims(1, 3, 33, 48), dims(2, 4, 128, 128)];

const fn dims(key_heads: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> GdnDims {
    GdnDims { key_heads, value_heads, key_dim, value_dim, conv_kernel: 4 }
}

/// Random inputs of some rows: q, k and v side by side, as the convolution leaves them.
struct Case {
    dims: GdnDims,
    qkv: Vec<f32>,
    alpha: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
}

impl Case {
    fn new(dims: GdnDims, rows: usize, seed: u32) -> Self {
        let scale = (dims.key_dim as f32).sqrt().recip();
        let qkv = numbers(rows * dims.conv_channels(), seed).iter().map(|x| x * scale).collect();
        let gates = rows * dims.value_heads;
        let (alpha, beta) = (between(gates, seed + 1, 0.5, 1.0), between(gates, seed + 2, 0.0, 1.0));
        Self { dims, qkv, alpha, beta, state: numbers(dims.state_len(), seed + 3) }
    }

    fn inputs(&self) -> Inputs<'_> {
        let keys = self.dims.key_heads * self.dims.key_dim;
        Inputs {
            q: &self.qkv,
            k: &self.qkv[keys..],
            v: &self.qkv[2 * keys..],
            stride: self.dims.conv_channels(),
            alpha: &self.alpha,
            beta: &self.beta,
        }
    }

    /// The law: plain decoding of `path`; outputs of its rows and the state after it.
    fn law(&self, path: &[usize]) -> (Vec<Vec<f32>>, Vec<f32>) {
        let _flush = FlushGuard::new();
        let (d, i) = (&self.dims, self.inputs());
        let mut state = self.state.clone();
        let outputs = path.iter().map(|&row| {
            let mut out = vec![];
            for head in 0..d.value_heads {
                let key_head = head / (d.value_heads / d.key_heads);
                let at = row * i.stride;
                let (q, k) = (&i.q[at + key_head * d.key_dim..], &i.k[at + key_head * d.key_dim..]);
                let v = &i.v[at + head * d.value_dim..];
                let (alpha, beta) = (self.alpha[row * d.value_heads + head], self.beta[row * d.value_heads + head]);
                for (j, v_j) in v.iter().enumerate().take(d.value_dim) {
                    let cell = |n: usize| (head * d.key_dim + n) * d.value_dim + j;
                    (0..d.key_dim).for_each(|n| state[cell(n)] *= alpha);
                    let m = (0..d.key_dim).fold(0f32, |m, n| k[n].mul_add(state[cell(n)], m));
                    let u = beta * (v_j - m);
                    (0..d.key_dim).for_each(|n| state[cell(n)] = k[n].mul_add(u, state[cell(n)]));
                    out.push((0..d.key_dim).fold(0f32, |o, n| q[n].mul_add(state[cell(n)], o)));
                }
            }
            out
        });
        (outputs.collect(), state)
    }

    fn verify(&self, pool: &Pool, parents: &[Option<usize>]) -> Vec<f32> {
        let mut walk = Walk::default();
        walk.plan(parents);
        let mut out = vec![f32::NAN; parents.len() * self.dims.value_heads * self.dims.value_dim];
        let mut scratch = vec![f32::NAN; scratch_len(pool, &self.dims, walk.slots())];
        verify(pool, &self.dims, &self.state, self.inputs(), &walk, &mut out, &mut scratch);
        out
    }

    fn advance(&self, pool: &Pool, rows: Rows, out: Option<&mut [f32]>) -> Vec<f32> {
        let (mut state, mut scratch) = (self.state.clone(), vec![f32::NAN; scratch_len(pool, &self.dims, 1)]);
        advance(pool, &self.dims, &mut state, self.inputs(), rows, out, &mut scratch);
        state
    }
}

#[test]
fn every_tree_row_equals_plain_decoding_of_its_path() {
    for dims in SHAPES {
        for rows in [1, 2, 17, 33] {
            let case = Case::new(dims, rows, rows as u32);
            let trees = [tree(rows, 9), (0..rows).map(|r| r.checked_sub(1)).collect(), tree(rows, 10)];
            for parents in trees {
                let want: Vec<f32> = (0..rows).flat_map(|r| case.law(&path(&parents, r)).0.pop().unwrap()).collect();
                for pool in pools() {
                    assert_bits(&case.verify(&pool, &parents), &want, &pool, &format!("{dims:?}, {rows} rows"));
                }
            }
        }
    }
}

#[test]
fn advancing_equals_decoding_row_by_row_and_commit_equals_having_decoded() {
    for dims in SHAPES {
        let case = Case::new(dims, 12, 5);
        let (outputs, state) = case.law(&(0..12).collect::<Vec<_>>());
        let accepted = [0, 3, 4, 11];
        let (_, committed) = case.law(&accepted);
        for pool in pools() {
            let mut out = vec![f32::NAN; 12 * dims.value_heads * dims.value_dim];
            let after = case.advance(&pool, Rows::First(12), Some(&mut out));
            assert_bits(&out, &outputs.concat(), &pool, "prefill outputs");
            assert_bits(&after, &state, &pool, "prefill state");
            assert_bits(&case.advance(&pool, Rows::Path(&accepted), None), &committed, &pool, "commit");
            assert_bits(&case.advance(&pool, Rows::Path(&[]), None), &case.state, &pool, "nothing accepted");
            assert_bits(&case.advance(&pool, Rows::First(1), None), &case.law(&[0]).1, &pool, "one row");
        }
    }
}

#[test]
fn a_sibling_branch_moves_no_bit_of_another() {
    let parents = vec![None, Some(0), Some(0), Some(1), Some(2), Some(2)];
    let mut case = Case::new(SHAPES[1], 6, 8);
    let pool = Pool::new(2);
    let before = case.verify(&pool, &parents);
    let stride = case.dims.conv_channels();
    case.qkv[stride..2 * stride].fill(3.5);
    let after = case.verify(&pool, &parents);
    let row = case.dims.value_heads * case.dims.value_dim;
    for r in 0..6 {
        let same = before[r * row..][..row] == after[r * row..][..row];
        assert_eq!(same, r != 1 && r != 3, "row {r}");
    }
}

#[test]
fn a_decaying_state_is_flushed_to_zero_not_to_subnormals() {
    let dims = dims(1, 1, 16, 16);
    let mut case = Case::new(dims, 1, 3);
    case.state.fill(f32::MIN_POSITIVE * 1.5);
    case.qkv.fill(0.0);
    case.alpha.fill(0.5);
    for pool in pools() {
        assert_eq!(case.advance(&pool, Rows::First(1), None), vec![0.0; dims.state_len()], "{:?}", pool.isa());
    }
}
