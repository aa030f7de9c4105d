//! The gated feed-forward half of a layer: `down(silu(gate x) * (up x))`, with optional biases.
//! Knows one layer; nothing of residual streams.

use crate::FastError;
use crate::backend::{Backend, Buffer, Matrix};
use crate::weights::Weights;

/// Weights: `gate_up` stacks both projections.
pub(crate) struct Mlp {
    gate_up: Matrix,
    bias: Option<Buffer>,
    down: Matrix,
    down_bias: Option<Buffer>,
    inner: usize,
}

/// Work memory.
pub(crate) struct MlpWork {
    gate_up: Buffer,
    product: Buffer,
}

impl MlpWork {
    /// For `rows` rows of layers of at most `inner` inner channels.
    pub fn new(backend: &Backend, inner: usize, rows: usize) -> Self {
        Self { gate_up: backend.alloc(2 * rows * inner), product: backend.alloc(rows * inner) }
    }
}

impl Mlp {
    /// Reads `gate_proj`, `up_proj`, `down_proj`.
    pub fn load(weights: &Weights, hidden: usize, inner: usize) -> Result<Self, FastError> {
        let pair = [("gate_proj", inner), ("up_proj", inner)];
        Ok(Self {
            gate_up: weights.stacked(&pair, hidden)?,
            bias: weights.biases(&pair)?,
            down: weights.matrix("down_proj", hidden, inner)?,
            down_bias: weights.biases(&[("down_proj", hidden)])?,
            inner,
        })
    }

    /// `y = mlp(x)`; `x, y: [rows, hidden]`.
    pub fn forward(&self, backend: &Backend, rows: usize, work: &mut MlpWork, x: &Buffer, y: &mut Buffer) {
        backend.linear(&self.gate_up, x, 0..rows, &mut work.gate_up);
        if let Some(bias) = &self.bias {
            backend.add_bias(&mut work.gate_up, bias, rows);
        }
        backend.swiglu(&work.gate_up, rows, self.inner, &mut work.product);
        backend.linear(&self.down, &work.product, 0..rows, y);
        if let Some(bias) = &self.down_bias {
            backend.add_bias(y, bias, rows);
        }
    }
}
