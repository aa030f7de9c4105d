//! A second witness for the recurrence on a tree: one masked triangular solve instead of a state per node, and the state
//! after any row in closed form (arXiv 2607.06763 section 3.4; chain case arXiv 2406.06484).
//! With `G_i` the sum of log decays over i's ancestors and itself, and sums over ancestors only:
//! `u_i + beta_i sum_(j<i) e^(G_i-G_j) (k_i.k_j) u_j = beta_i (v_i - e^(G_i) S0^T k_i)`
//! `o_i = e^(G_i) S0^T q_i + sum_(j<=i) e^(G_i-G_j) (q_i.k_j) u_j`
//! `S_i = e^(G_i) S0 + sum_(j<=i) e^(G_i-G_j) k_j u_j^T`

use crate::{gdn::DeltaInputs, rows::Rows};
use ndarray::{Array1, Array2, Array3, Axis, s};

/// The solved writes of all rows, from which outputs and states follow.
pub struct Solved<'a> {
    inputs: &'a DeltaInputs,
    rows: &'a Rows,
    base: &'a Array3<f64>,
    decay: Array2<f64>,
    writes: Array3<f64>,
}

/// Solves for the writes `u` of every row. `base: [value_heads, key_dim, value_dim]`.
pub fn solve<'a>(inputs: &'a DeltaInputs, rows: &'a Rows, base: &'a Array3<f64>) -> Solved<'a> {
    let mut decay = Array2::zeros(inputs.g.raw_dim());
    let mut writes = Array3::zeros(inputs.value.raw_dim());
    for (row, sees) in rows.sees.iter().enumerate() {
        decay.row_mut(row).assign(&inputs.g.select(Axis(0), sees).sum_axis(Axis(0)));
    }
    for row in 0..rows.len() {
        for head in 0..base.len_of(Axis(0)) {
            let k = inputs.key.slice(s![row, head, ..]);
            let from_base = k.dot(&base.index_axis(Axis(0), head)) * f64::exp(decay[[row, head]]);
            let mut u = &inputs.value.slice(s![row, head, ..]) - &from_base;
            for &j in rows.sees[row].iter().filter(|&&j| j != row) {
                let weight = f64::exp(decay[[row, head]] - decay[[j, head]]) * k.dot(&inputs.key.slice(s![j, head, ..]));
                u.scaled_add(-weight, &writes.slice(s![j, head, ..]));
            }
            writes.slice_mut(s![row, head, ..]).assign(&(u * inputs.beta[[row, head]]));
        }
    }
    Solved { inputs, rows, base, decay, writes }
}

impl Solved<'_> {
    /// What the layer reads at one row, `[value_dim]` of one head.
    pub fn output(&self, row: usize, head: usize) -> Array1<f64> {
        let q = self.inputs.query.slice(s![row, head, ..]);
        let mut o = q.dot(&self.base.index_axis(Axis(0), head)) * self.decay[[row, head]].exp();
        for &j in &self.rows.sees[row] {
            let weight = (self.decay[[row, head]] - self.decay[[j, head]]).exp() * q.dot(&self.inputs.key.slice(s![j, head, ..]));
            o.scaled_add(weight, &self.writes.slice(s![j, head, ..]));
        }
        o
    }

    /// The state after one row, `[value_heads, key_dim, value_dim]`: what a commit of its path leaves.
    pub fn state(&self, row: usize) -> Array3<f64> {
        let mut state = self.base.clone();
        for (head, mut s_head) in state.outer_iter_mut().enumerate() {
            s_head *= self.decay[[row, head]].exp();
            for &j in &self.rows.sees[row] {
                let weight = (self.decay[[row, head]] - self.decay[[j, head]]).exp();
                let (k, u) = (self.inputs.key.slice(s![j, head, ..]), self.writes.slice(s![j, head, ..]));
                s_head.scaled_add(weight, &(&k.insert_axis(Axis(1)) * &u.insert_axis(Axis(0))));
            }
        }
        state
    }
}
