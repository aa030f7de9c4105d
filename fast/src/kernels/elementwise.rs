//! Operations without a sum: additions, gates, SwiGLU and the delta rule's decay and strength. One order per element.

use super::lanes::{Kernel, Lanes};
use super::layout::Layout;
use super::math::{exp_lanes, sigmoid_lanes, silu_lanes, softplus_lanes};
use super::pool::{Disjoint, Pool};

/// Elements below which a second thread costs more than it brings.
const GRAIN: usize = 1 << 13;

/// An operation `y = f(y, b)` on each element.
#[derive(Clone, Copy)]
enum Op {
    /// `y + b`
    Add,
    /// `y * sigmoid(b)`
    SigmoidGate,
    /// `silu(y) * b`
    Swiglu,
}

/// `x += delta`, of equal lengths.
pub fn add(pool: &Pool, x: &mut [f32], delta: &[f32]) {
    let at = Layout::rows(1, x.len());
    binary(pool, Op::Add, (x, at), (delta, at));
}

/// `x[r] += bias` for rows of `bias.len()`.
pub fn add_bias(pool: &Pool, x: &mut [f32], bias: &[f32]) {
    assert!(x.len().is_multiple_of(bias.len()), "x has whole rows of the bias' length");
    let at = Layout::rows(x.len() / bias.len(), bias.len());
    binary(pool, Op::Add, (x, at), (bias, Layout { row_stride: 0, ..at }));
}

/// `x *= sigmoid(gate)`, vector by vector.
///
/// # Panics
/// If the layouts disagree in rows, heads or dim, or do not fit.
pub fn sigmoid_mul(pool: &Pool, x: &mut [f32], x_at: Layout, gate: &[f32], gate_at: Layout) {
    binary(pool, Op::SigmoidGate, (x, x_at), (gate, gate_at));
}

/// SwiGLU: `out[r] = silu(gate) * up` for rows `[gate | up]` of `2 * dim`; `out: [rows, dim]`.
pub fn silu_mul(pool: &Pool, gate_up: &[f32], rows: usize, out: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * out.len(), "gate_up has twice the elements of out");
    if rows == 0 {
        return;
    }
    let dim = out.len() / rows;
    let grain = GRAIN.div_ceil(dim.max(1));
    let out = Disjoint::new(out);
    pool.split(rows, grain, |_, range| {
        for row in range {
            let (gate, up) = gate_up[row * 2 * dim..][..2 * dim].split_at(dim);
            // SAFETY: each row of `out` belongs to one part.
            let out = unsafe { out.slice(row * dim, dim) };
            out.copy_from_slice(gate);
            pool.vectorise(Binary { op: Op::Swiglu, y: out, b: up });
        }
    });
}

/// The delta rule's gates. `alpha[r][h] = exp(neg_a[h] * softplus(a[r][h] + dt_bias[h]))`, `beta[r][h] = sigmoid(b[r][h])`.
/// `neg_a` is `-exp(A_log)`; `a` and `b` are rows of `heads` floats, `stride` apart; results are `[rows, heads]`.
pub fn gdn_gates(pool: &Pool, weights: GateWeights, ab: GateInputs, alpha: &mut [f32], beta: &mut [f32]) {
    let heads = weights.neg_a.len();
    assert_eq!(weights.dt_bias.len(), heads, "one dt_bias per head");
    assert_eq!((alpha.len(), beta.len()), (ab.rows * heads, ab.rows * heads), "alpha and beta are [rows, heads]");
    let (alpha, beta) = (Disjoint::new(alpha), Disjoint::new(beta));
    pool.split(ab.rows, GRAIN.div_ceil(heads), |_, range| {
        for row in range {
            let (a, b) = (&ab.a[row * ab.stride..][..heads], &ab.b[row * ab.stride..][..heads]);
            // SAFETY: each row belongs to one part.
            let (alpha, beta) = unsafe { (alpha.slice(row * heads, heads), beta.slice(row * heads, heads)) };
            pool.vectorise(Gates { weights, a, b, alpha, beta });
        }
    });
}

/// Per value head: what is learned of its decay.
#[derive(Clone, Copy)]
pub struct GateWeights<'a> {
    /// `-exp(A_log)`, by [`super::math::exp`].
    pub neg_a: &'a [f32],
    /// Added to a.
    pub dt_bias: &'a [f32],
}

/// Rows of the a and b projections.
#[derive(Clone, Copy)]
pub struct GateInputs<'a> {
    /// Starts at the first row's first a.
    pub a: &'a [f32],
    /// Starts at the first row's first b.
    pub b: &'a [f32],
    /// Floats from a row to the next.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
}

fn binary(pool: &Pool, op: Op, (y, y_at): (&mut [f32], Layout), (b, b_at): (&[f32], Layout)) {
    y_at.check("x", y.len());
    let shape = |at: Layout| (at.rows, at.heads, at.dim);
    assert_eq!(shape(y_at), shape(b_at), "both sides have the same vectors");
    let split_one = y_at.vectors() == 1;
    let y = Disjoint::new(y);
    if split_one {
        pool.split(y_at.dim, GRAIN, |_, range| {
            // SAFETY: parts of one vector do not overlap.
            let y = unsafe { y.slice(range.start, range.len()) };
            pool.vectorise(Binary { op, y, b: &b[range] });
        });
        return;
    }
    pool.split(y_at.vectors(), GRAIN.div_ceil(y_at.dim.max(1)), |_, range| {
        for i in range {
            // SAFETY: vectors do not overlap (checked), and each belongs to one part.
            let y = unsafe { y.slice(y_at.start(i), y_at.dim) };
            pool.vectorise(Binary { op, y, b: &b[b_at.range(i)] });
        }
    });
}

struct Binary<'a> {
    op: Op,
    y: &'a mut [f32],
    b: &'a [f32],
}

impl Kernel for Binary<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        assert_eq!(self.y.len(), self.b.len(), "equal lengths");
        let n = self.y.len();
        let whole = n - n % L::WIDTH;
        // SAFETY: the caller's promise; indices stay inside both slices.
        unsafe {
            let (y, b) = (self.y.as_mut_ptr(), self.b.as_ptr());
            for i in (0..whole).step_by(L::WIDTH) {
                self.op.apply(L::load(y.add(i)), L::load(b.add(i))).store(y.add(i));
            }
            for i in whole..n {
                *y.add(i) = self.op.apply(*y.add(i), *b.add(i));
            }
        }
    }
}

impl Op {
    /// # Safety
    /// The processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn apply<L: Lanes>(self, y: L, b: L) -> L {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Add => y.add(b),
                Self::SigmoidGate => y.mul(sigmoid_lanes(b)),
                Self::Swiglu => silu_lanes(y).mul(b),
            }
        }
    }
}

struct Gates<'a> {
    weights: GateWeights<'a>,
    a: &'a [f32],
    b: &'a [f32],
    alpha: &'a mut [f32],
    beta: &'a mut [f32],
}

impl Gates<'_> {
    /// # Safety
    /// `L::WIDTH` heads from `i`; the processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn at<L: Lanes>(&mut self, i: usize) {
        // SAFETY: the caller's promise; all six slices have one element per head.
        unsafe {
            let x = L::load(self.a.as_ptr().add(i)).add(L::load(self.weights.dt_bias.as_ptr().add(i)));
            let g = L::load(self.weights.neg_a.as_ptr().add(i)).mul(softplus_lanes(x));
            exp_lanes(g).store(self.alpha.as_mut_ptr().add(i));
            sigmoid_lanes(L::load(self.b.as_ptr().add(i))).store(self.beta.as_mut_ptr().add(i));
        }
    }
}

impl Kernel for Gates<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let heads = self.alpha.len();
        let whole = heads - heads % L::WIDTH;
        // SAFETY: the caller's promise; indices stay inside.
        unsafe {
            (0..whole).step_by(L::WIDTH).for_each(|i| self.at::<L>(i));
            (whole..heads).for_each(|i| self.at::<f32>(i));
        }
    }
}

#[cfg(test)]
#[path = "elementwise_tests.rs"]
mod tests;
