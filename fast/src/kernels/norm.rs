//! RMSNorm, the delta rule's gated norm and the l2 norm of its queries and keys. Sums in 128 lanes ([`super::fold`]);
//! the reciprocal root is `1 / sqrt(.)`; every factor is applied by its own multiplication, in the written order.

use super::fold::{Square, sum};
use super::lanes::{Kernel, Lanes};
use super::layout::Layout;
use super::math::{rsqrt, silu_lanes};
use super::pool::{Disjoint, Pool};

/// Elements below which a second thread costs more than it brings.
const GRAIN: usize = 1 << 13;
/// Inside the root of the l2 norm of q and k, whatever the config says of other norms.
const L2_EPS: f32 = 1e-6;

/// RMSNorm of each vector: `y = (x * rsqrt(sum(x^2) / dim + eps)) * scale`. `scale` is w, or 1 + w computed once at load.
/// `y` is `[rows, heads, dim]` without gaps.
///
/// # Panics
/// If a length is wrong; so do all functions here.
pub fn rms_norm(pool: &Pool, x: &[f32], at: Layout, norm: Norm, y: &mut [f32]) {
    at.check("x", x.len());
    assert_eq!(y.len(), at.vectors() * at.dim, "y is {at:?} without gaps");
    let out = Disjoint::new(y);
    each(pool, at, |i| {
        // SAFETY: each vector of `y` belongs to one part.
        let y = unsafe { out.slice(i * at.dim, at.dim) };
        y.copy_from_slice(&x[at.range(i)]);
        pool.vectorise(Scale { x: y, factor: Factor::Rms(norm), gate: None });
    });
}

/// [`rms_norm`] in place: the norm of query and key heads.
pub fn rms_norm_in_place(pool: &Pool, x: &mut [f32], at: Layout, norm: Norm) {
    in_place(pool, x, at, Factor::Rms(norm));
}

/// `x += delta; y = rms_norm(x)` for `[rows, dim]`: the residual stream between two blocks.
pub fn add_rms_norm(pool: &Pool, x: &mut [f32], delta: &[f32], norm: Norm, y: &mut [f32]) {
    let dim = norm.scale.len();
    assert!(x.len() == delta.len() && x.len() == y.len() && x.len().is_multiple_of(dim), "x, delta and y are [rows, {dim}]");
    let at = Layout::rows(x.len() / dim, dim);
    let (x, y) = (Disjoint::new(x), Disjoint::new(y));
    each(pool, at, |i| {
        // SAFETY: each row belongs to one part.
        let (x, y) = unsafe { (x.slice(i * dim, dim), y.slice(i * dim, dim)) };
        for (x, delta) in x.iter_mut().zip(&delta[i * dim..][..dim]) {
            *x += delta;
        }
        y.copy_from_slice(x);
        pool.vectorise(Scale { x: y, factor: Factor::Rms(norm), gate: None });
    });
}

/// The delta rule's output norm, in place: `o = ((o * rsqrt(sum(o^2) / dim + eps)) * w) * silu(z)` per value head.
pub fn gated_norm(pool: &Pool, o: &mut [f32], at: Layout, norm: Norm, z: &[f32], z_at: Layout) {
    at.check("o", o.len());
    z_at.check("z", z.len());
    assert_eq!((at.rows, at.heads, at.dim), (z_at.rows, z_at.heads, z_at.dim), "o and z have the same vectors");
    let o = Disjoint::new(o);
    each(pool, at, |i| {
        // SAFETY: vectors do not overlap (checked), and each belongs to one part.
        let o = unsafe { o.slice(at.start(i), at.dim) };
        pool.vectorise(Scale { x: o, factor: Factor::Rms(norm), gate: Some(&z[z_at.range(i)]) });
    });
}

/// `x = (x * rsqrt(sum(x^2) + 1e-6)) * scale` per vector, in place: queries with `dim^-1/2`, keys with 1.
pub fn l2_normalise(pool: &Pool, x: &mut [f32], at: Layout, scale: f32) {
    in_place(pool, x, at, Factor::L2(scale));
}

/// A norm's weights.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    /// One factor per element: w, or 1 + w.
    pub scale: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

#[derive(Clone, Copy)]
enum Factor<'a> {
    Rms(Norm<'a>),
    L2(f32),
}

fn in_place(pool: &Pool, x: &mut [f32], at: Layout, factor: Factor) {
    at.check("x", x.len());
    let x = Disjoint::new(x);
    each(pool, at, |i| {
        // SAFETY: vectors do not overlap (checked), and each belongs to one part.
        let x = unsafe { x.slice(at.start(i), at.dim) };
        pool.vectorise(Scale { x, factor, gate: None });
    });
}

fn each(pool: &Pool, at: Layout, job: impl Fn(usize) + Sync) {
    pool.split(at.vectors(), GRAIN.div_ceil(at.dim.max(1)), |_, range| range.for_each(&job));
}

struct Scale<'a> {
    x: &'a mut [f32],
    factor: Factor<'a>,
    gate: Option<&'a [f32]>,
}

impl Kernel for Scale<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let n = self.x.len();
        // SAFETY: the caller's promise.
        let squares = unsafe { sum::<L, _>(self.x, Square) };
        let r = match self.factor {
            Factor::Rms(norm) => {
                assert_eq!(norm.scale.len(), n, "one factor per element");
                rsqrt(squares / n as f32 + norm.eps)
            }
            Factor::L2(_) => rsqrt(squares + L2_EPS),
        };
        assert!(self.gate.is_none_or(|z| z.len() == n), "one gate per element");
        let whole = n - n % L::WIDTH;
        let x = self.x.as_mut_ptr();
        // SAFETY: the caller's promise; indices stay inside the slices, whose lengths were checked.
        unsafe {
            for i in (0..whole).step_by(L::WIDTH) {
                self.factor.apply(L::load(x.add(i)), r, self.gate, i).store(x.add(i));
            }
            for i in whole..n {
                *x.add(i) = self.factor.apply(*x.add(i), r, self.gate, i);
            }
        }
    }
}

impl Factor<'_> {
    /// # Safety
    /// `L::WIDTH` elements from `i` in scale and gate; the processor has the instruction set of `L`.
    #[inline(always)]
    unsafe fn apply<L: Lanes>(self, x: L, r: f32, gate: Option<&[f32]>, i: usize) -> L {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = match self {
                Self::Rms(norm) => L::load(norm.scale.as_ptr().add(i)),
                Self::L2(scale) => L::splat(scale),
            };
            let y = x.mul(L::splat(r)).mul(scale);
            match gate {
                Some(z) => y.mul(silu_lanes(L::load(z.as_ptr().add(i)))),
                None => y,
            }
        }
    }
}

#[cfg(test)]
#[path = "norm_tests.rs"]
mod tests;
