//! The processor behind the seam: buffers are vectors, operations are kernels. Memory movement, projections, norms and
//! elementwise operations; the mixers' operations are in `attention` and `delta`.

use crate::kernels::Layout;
use crate::kernels::{Activations, Packed, Pool, elementwise, linear, norm};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// A matrix as the backend multiplies with it.
pub(crate) type Matrix = Packed;

/// A device.
pub(crate) struct Backend {
    pool: Pool,
    /// Work memory of quantised linears, one for each caller at a time.
    activations: Mutex<Vec<Activations>>,
}

/// Device memory: f32 elements, zero at first.
pub(crate) struct Buffer(pub(super) Vec<f32>);

/// An RMSNorm's factors, `1 + w` already computed where the model wants it.
pub(crate) struct Norm {
    scale: Buffer,
    eps: f32,
}

impl Norm {
    /// `scale: [dim]`.
    pub fn new(backend: &Backend, scale: &[f32], eps: f64) -> Self {
        Self { scale: backend.upload(scale), eps: eps as f32 }
    }

    /// Elements of a normed vector.
    pub fn dim(&self) -> usize {
        self.scale.0.len()
    }

    fn kernel(&self) -> norm::Norm<'_> {
        norm::Norm { scale: &self.scale.0, eps: self.eps }
    }
}

/// Vectors inside the rows of a buffer: `at`, from element `first` on.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(super) first: usize,
    pub(super) at: Layout,
}

impl Place {
    /// `heads` vectors of `dim` side by side in every row, without gaps, from element `first` on.
    pub fn heads(first: usize, rows: usize, heads: usize, dim: usize) -> Self {
        Self { first, at: Layout::heads(rows, heads, dim) }
    }

    /// The same in rows of `width` elements.
    pub fn in_rows_of(self, width: usize) -> Self {
        Self { at: self.at.strided(width), ..self }
    }
}

impl Backend {
    /// The processor with `threads` threads; 0 means one per core.
    pub fn new(threads: usize) -> Self {
        Self { pool: Pool::new(threads), activations: Mutex::new(vec![]) }
    }

    /// The threads, for work on host data (sampling).
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Zeroed memory.
    pub fn alloc(&self, len: usize) -> Buffer {
        Buffer(vec![0.0; len])
    }

    /// Host data on the device.
    pub fn upload(&self, data: &[f32]) -> Buffer {
        Buffer(data.to_vec())
    }

    /// `len` elements from `at` on the host.
    pub fn read<'b>(&self, buffer: &'b Buffer, at: usize, len: usize) -> &'b [f32] {
        &buffer.0[at..at + len]
    }

    /// All elements on the host.
    pub fn read_all<'b>(&self, buffer: &'b Buffer) -> &'b [f32] {
        &buffer.0
    }

    /// Copies rows of `width` elements, in the order of `rows`, behind one another from row `at` of `to`.
    pub fn gather(&self, from: &Buffer, width: usize, rows: &[usize], to: &mut Buffer, at: usize) {
        for (i, &row) in rows.iter().enumerate() {
            to.0[(at + i) * width..][..width].copy_from_slice(&from.0[row * width..][..width]);
        }
    }

    /// Moves one row of `width` elements.
    pub fn move_row(&self, buffer: &mut Buffer, width: usize, from: usize, to: usize) {
        buffer.0.copy_within(from * width..(from + 1) * width, to * width);
    }

    /// Copies vectors between rows of unlike widths.
    pub fn copy(&self, (from, from_at): (&Buffer, Place), (to, to_at): (&mut Buffer, Place)) {
        let (f, t) = (from_at.at, to_at.at);
        for row in 0..f.rows {
            let source = &from.0[from_at.first + row * f.row_stride..][..f.heads * f.dim];
            to.0[to_at.first + row * t.row_stride..][..t.heads * t.dim].copy_from_slice(source);
        }
    }

    /// Rows of a table: `out: [tokens, inputs]`.
    pub fn embed(&self, table: &Matrix, tokens: &[u32], out: &mut Buffer) {
        let width = table.inputs();
        for (i, &token) in tokens.iter().enumerate() {
            table.row(token as usize, &mut out.0[i * width..][..width]);
        }
    }

    /// The chosen rows as a matrix of their own, stored as they are.
    pub fn select_rows(&self, matrix: &Matrix, rows: &[u32]) -> Matrix {
        matrix.select(&rows.iter().map(|&row| row as usize).collect::<Vec<_>>())
    }

    /// `y = W x` for rows `rows` of x; y is filled from its first row.
    pub fn linear(&self, w: &Matrix, x: &Buffer, rows: Range<usize>, y: &mut Buffer) {
        let (n, inputs, outputs) = (rows.len(), w.inputs(), w.outputs());
        let idle = || self.activations.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = idle().pop().unwrap_or_default();
        let x = &x.0[rows.start * inputs..rows.end * inputs];
        linear::linear(&self.pool, w, x, n, &mut y.0[..n * outputs], &mut scratch);
        idle().push(scratch);
    }

    /// `y[r] += bias` for the first `rows` rows.
    pub fn add_bias(&self, y: &mut Buffer, bias: &Buffer, rows: usize) {
        elementwise::add_bias(&self.pool, &mut y.0[..rows * bias.0.len()], &bias.0);
    }

    /// `x += delta` for the first `len` elements.
    pub fn add(&self, x: &mut Buffer, delta: &Buffer, len: usize) {
        elementwise::add(&self.pool, &mut x.0[..len], &delta.0[..len]);
    }

    /// `y = norm(x)` for the first `rows` rows.
    pub fn norm(&self, norm: &Norm, x: &Buffer, rows: usize, y: &mut Buffer) {
        let len = rows * norm.dim();
        norm::rms_norm(&self.pool, &x.0[..len], Layout::rows(rows, norm.dim()), norm.kernel(), &mut y.0[..len]);
    }

    /// Norms vectors where they are.
    pub fn norm_in_place(&self, norm: &Norm, x: &mut Buffer, place: Place) {
        norm::rms_norm_in_place(&self.pool, &mut x.0[place.first..], place.at, norm.kernel());
    }

    /// `x += delta; y = norm(x)` for the first `rows` rows.
    pub fn add_norm(&self, norm: &Norm, x: &mut Buffer, delta: &Buffer, rows: usize, y: &mut Buffer) {
        let len = rows * norm.dim();
        norm::add_rms_norm(&self.pool, &mut x.0[..len], &delta.0[..len], norm.kernel(), &mut y.0[..len]);
    }

    /// `o = norm(o) * silu(z)`, vector by vector.
    pub fn gated_norm(&self, norm: &Norm, (o, o_at): (&mut Buffer, Place), (z, z_at): (&Buffer, Place)) {
        let (o, z) = (&mut o.0[o_at.first..], &z.0[z_at.first..]);
        norm::gated_norm(&self.pool, o, o_at.at, norm.kernel(), z, z_at.at);
    }

    /// Scales vectors to length `scale`, where they are.
    pub fn unit(&self, x: &mut Buffer, place: Place, scale: f32) {
        norm::l2_normalise(&self.pool, &mut x.0[place.first..], place.at, scale);
    }

    /// `x *= sigmoid(gate)`, vector by vector.
    pub fn sigmoid_gate(&self, (x, x_at): (&mut Buffer, Place), (gate, gate_at): (&Buffer, Place)) {
        elementwise::sigmoid_mul(&self.pool, &mut x.0[x_at.first..], x_at.at, &gate.0[gate_at.first..], gate_at.at);
    }

    /// `y = silu(gate) * up` for rows `[gate | up]` of `2 * width`.
    pub fn swiglu(&self, gate_up: &Buffer, rows: usize, width: usize, y: &mut Buffer) {
        elementwise::silu_mul(&self.pool, &gate_up.0[..2 * rows * width], rows, &mut y.0[..rows * width]);
    }
}
