//! The Gated DeltaNet mixer (Yang et al., arXiv 2412.06464, as Qwen3.5 uses it): projections, causal convolution, gated
//! delta rule, gated norm. A verification reads the committed state and stashes what a commit needs; a commit runs the same
//! recurrence along the accepted path. Nothing is rolled back, because nothing wrong is ever written.

use crate::FastError;
use crate::backend::{Backend, Buffer, Conv, DeltaRows, Matrix, Norm, Place};
use crate::model::TREE_ROWS;
use crate::plan::{Fate, Plan};
use crate::weights::Weights;
use specdec::GdnDims;

/// Taps that the convolution kernel takes at most.
const MAX_TAPS: usize = 8;

/// Weights of one layer. The input projection is one matrix with rows `[q, k, v | z | b | a]`.
pub(crate) struct Gdn {
    dims: GdnDims,
    input: Matrix,
    conv: Conv,
    /// `-exp(A_log)`: `[value_heads]`.
    rate: Buffer,
    dt_bias: Buffer,
    norm: Norm,
    output: Matrix,
}

/// What a sequence keeps of one layer.
pub(crate) struct GdnState {
    /// `[value_heads, key_dim, value_dim]`.
    state: Buffer,
    /// The last `taps - 1` raw rows, oldest first: `[taps - 1, channels]`.
    tail: Buffer,
}

impl GdnState {
    /// The state before the first token: zero.
    pub fn new(backend: &Backend, d: &GdnDims) -> Self {
        Self { state: backend.alloc(d.state_len()), tail: backend.alloc((d.conv_kernel - 1) * d.conv_channels()) }
    }
}

impl GdnState {
    /// Recurrent state and convolution tail on the host.
    pub fn read<'s>(&'s self, backend: &Backend) -> (&'s [f32], &'s [f32]) {
        (backend.read_all(&self.state), backend.read_all(&self.tail))
    }
}

/// The rows of the last pass over one layer: all that a commit needs of them.
pub(crate) struct GdnStash {
    /// The input projection, `[rows, channels + value + 2 heads]`; its first channels are the raw rows.
    fused: Buffer,
    /// After convolution and norms, and the gates.
    rows: DeltaRows,
}

impl GdnStash {
    /// For `rows` rows.
    pub fn new(backend: &Backend, d: &GdnDims, rows: usize) -> Self {
        let qkv = backend.alloc(rows * d.conv_channels());
        let gates = || backend.alloc(rows * d.value_heads);
        Self { fused: backend.alloc(rows * fused_width(d)), rows: DeltaRows { qkv, alpha: gates(), beta: gates() } }
    }
}

/// Work memory that layers share.
pub(crate) struct GdnWork {
    mixed: Buffer,
    scratch: Buffer,
    /// The stash of passes whose rows are kept at once; layers need none of their own then.
    stash: GdnStash,
}

impl GdnWork {
    /// For passes of `rows` rows.
    pub fn new(backend: &Backend, d: &GdnDims, rows: usize) -> Self {
        // A tree's walk keeps at most log2(rows) + 1 states alive.
        let slots = TREE_ROWS.ilog2() as usize + 1;
        Self {
            mixed: backend.alloc(rows * d.value_heads * d.value_dim),
            scratch: backend.delta_scratch(d, slots),
            stash: GdnStash::new(backend, d, rows),
        }
    }
}

impl Gdn {
    /// Reads the tensors of `linear_attn`.
    pub fn load(weights: &Weights, dims: GdnDims, hidden: usize, eps: f64) -> Result<Self, FastError> {
        if dims.conv_kernel > MAX_TAPS {
            return Err(FastError::bounds("linear_conv_kernel_dim", dims.conv_kernel, format!("at most {MAX_TAPS}")));
        }
        let (channels, value, heads) = (dims.conv_channels(), dims.value_heads * dims.value_dim, dims.value_heads);
        let backend = weights.backend();
        let parts = [("in_proj_qkv", channels), ("in_proj_z", value), ("in_proj_b", heads), ("in_proj_a", heads)];
        let conv = weights.numbers("conv1d.weight", &[channels, 1, dims.conv_kernel])?;
        Ok(Self {
            input: weights.stacked(&parts, hidden)?,
            conv: Conv::new(&conv, channels, dims.conv_kernel),
            rate: backend.decay_rates(&weights.vector("A_log", heads)?),
            dt_bias: backend.upload(&weights.vector("dt_bias", heads)?),
            norm: weights.norm("norm", dims.value_dim, eps, false)?,
            output: weights.matrix("out_proj", hidden, value)?,
            dims,
        })
    }

    /// `y = mixer(x)` for the plan's rows, `x, y: [rows, hidden]`. Rows to be kept become part of the
    /// state at once; staged ones only read it, and [`commit`](Self::commit) may follow.
    pub fn forward(
        &self,
        backend: &Backend,
        plan: &Plan,
        (state, stash): (&mut GdnState, &mut GdnStash),
        work: &mut GdnWork,
        (x, y): (&Buffer, &mut Buffer),
    ) {
        let (d, rows) = (&self.dims, plan.rows());
        let (channels, value, heads) = (d.conv_channels(), d.value_heads * d.value_dim, d.value_heads);
        let keep = plan.fate == Fate::Kept;
        let stash = if keep { &mut work.stash } else { stash };
        let width = fused_width(d);
        backend.linear(&self.input, x, 0..rows, &mut stash.fused);
        backend.conv((&self.conv, channels), &state.tail, (&stash.fused, width), plan, &mut stash.rows.qkv);
        let key_heads = |first| Place::heads(first, rows, d.key_heads, d.key_dim).in_rows_of(channels);
        backend.unit(&mut stash.rows.qkv, key_heads(0), 1.0 / (d.key_dim as f32).sqrt());
        backend.unit(&mut stash.rows.qkv, key_heads(d.key_heads * d.key_dim), 1.0);
        let (b, a) = (channels + value, channels + value + heads);
        backend.delta_gates((&self.rate, &self.dt_bias), (&stash.fused, width, a, b), rows, &mut stash.rows);
        if keep {
            backend.delta_advance(d, &mut state.state, &stash.rows, rows, &mut work.mixed, &mut work.scratch);
            backend.conv_keep(&self.conv, &mut state.tail, (&stash.fused, width), 0..rows);
        } else {
            backend.delta_verify(d, &state.state, &stash.rows, plan, &mut work.mixed, &mut work.scratch);
        }
        let o = Place::heads(0, rows, heads, d.value_dim);
        let z = Place::heads(channels, rows, heads, d.value_dim).in_rows_of(width);
        backend.gated_norm(&self.norm, (&mut work.mixed, o), (&stash.fused, z));
        backend.linear(&self.output, &work.mixed, 0..rows, y);
    }

    /// Advances the state along `path`, rows of the last verification from the root downwards.
    pub fn commit(&self, backend: &Backend, (state, stash): (&mut GdnState, &GdnStash), work: &mut GdnWork, path: &[usize]) {
        backend.delta_commit(&self.dims, &mut state.state, &stash.rows, path, &mut work.scratch);
        let raw = (&stash.fused, fused_width(&self.dims));
        backend.conv_keep(&self.conv, &mut state.tail, raw, path.iter().copied());
    }
}

/// Outputs of the input projection.
fn fused_width(d: &GdnDims) -> usize {
    d.conv_channels() + d.value_heads * (d.value_dim + 2)
}
