//! The Gated DeltaNet operations behind the seam: convolution along paths, gates, the delta rule's scan.

use super::{Backend, Buffer, Conv};
use crate::kernels::Topology;
use crate::kernels::conv::RawRows;
use crate::kernels::elementwise::{GateInputs, GateWeights, gdn_gates};
use crate::kernels::{gdn, math};
use crate::plan::Plan;
use specdec::GdnDims;

/// What the recurrence reads of some rows.
pub(crate) struct DeltaRows {
    /// `[rows, channels]`: q (normed, scaled), k (normed), v side by side.
    pub qkv: Buffer,
    /// The state's decay, `[rows, value_heads]`.
    pub alpha: Buffer,
    /// The write strength, `[rows, value_heads]`.
    pub beta: Buffer,
}

impl Backend {
    /// `-exp(A_log)`.
    pub fn decay_rates(&self, a_log: &[f32]) -> Buffer {
        Buffer(a_log.iter().map(|&a| -math::exp(a)).collect())
    }

    /// Work memory of the scan, for trees whose walk keeps at most `slots` states alive.
    pub fn delta_scratch(&self, d: &GdnDims, slots: usize) -> Buffer {
        self.alloc(gdn::scratch_len(self.pool(), d, slots))
    }

    /// Convolution and silu along the paths of the plan. `raw`: a buffer and the width of its rows, which start with the
    /// raw `channels`. `out: [rows, channels]`.
    pub fn conv(&self, (conv, channels): (&Conv, usize), tail: &Buffer, raw: (&Buffer, usize), plan: &Plan, out: &mut Buffer) {
        let rows = plan.rows();
        let topology = Topology::Tree(&plan.parents);
        conv.forward(self.pool(), &tail.0, raw_rows(raw, rows), topology, &mut out.0[..rows * channels]);
    }

    /// The tail after `path` was committed.
    pub fn conv_keep(&self, conv: &Conv, tail: &mut Buffer, raw: (&Buffer, usize), path: impl ExactSizeIterator<Item = usize>) {
        let rows = raw.0.0.len() / raw.1;
        conv.commit(&mut tail.0, raw_rows(raw, rows), path);
    }

    /// Fills alpha and beta from columns `b` and `a` of rows of `width` elements. `weights`: rate and dt_bias.
    pub fn delta_gates(
        &self,
        weights: (&Buffer, &Buffer),
        (rows_of, width, a, b): (&Buffer, usize, usize, usize),
        rows: usize,
        into: &mut DeltaRows,
    ) {
        let weights = GateWeights { neg_a: &weights.0.0, dt_bias: &weights.1.0 };
        let len = rows * weights.neg_a.len();
        let inputs = GateInputs { a: &rows_of.0[a..], b: &rows_of.0[b..], stride: width, rows };
        gdn_gates(self.pool(), weights, inputs, &mut into.alpha.0[..len], &mut into.beta.0[..len]);
    }

    /// Runs the rows of a tree from the committed state, which is only read. `out: [rows, value_heads * value_dim]`.
    pub fn delta_verify(
        &self,
        d: &GdnDims,
        state: &Buffer,
        rows: &DeltaRows,
        plan: &Plan,
        out: &mut Buffer,
        scratch: &mut Buffer,
    ) {
        gdn::verify(self.pool(), d, &state.0, inputs(d, rows), &plan.walk, &mut out.0, &mut scratch.0);
    }

    /// Runs rows `0..rows`, a chain, and leaves the state after the last.
    pub fn delta_advance(
        &self,
        d: &GdnDims,
        state: &mut Buffer,
        rows_of: &DeltaRows,
        rows: usize,
        out: &mut Buffer,
        scratch: &mut Buffer,
    ) {
        let rows = gdn::Rows::First(rows);
        gdn::advance(self.pool(), d, &mut state.0, inputs(d, rows_of), rows, Some(&mut out.0), &mut scratch.0);
    }

    /// Advances the state along `path`.
    pub fn delta_commit(&self, d: &GdnDims, state: &mut Buffer, rows: &DeltaRows, path: &[usize], scratch: &mut Buffer) {
        gdn::advance(self.pool(), d, &mut state.0, inputs(d, rows), gdn::Rows::Path(path), None, &mut scratch.0);
    }
}

fn raw_rows<'a>((data, stride): (&'a Buffer, usize), rows: usize) -> RawRows<'a> {
    RawRows { data: &data.0, stride, rows }
}

fn inputs<'a>(d: &GdnDims, rows: &'a DeltaRows) -> gdn::Inputs<'a> {
    let key = d.key_heads * d.key_dim;
    let (qkv, stride) = (&rows.qkv.0, d.conv_channels());
    gdn::Inputs { q: qkv, k: &qkv[key..], v: &qkv[2 * key..], stride, alpha: &rows.alpha.0, beta: &rows.beta.0 }
}
