//! exp, log, sigmoid, silu, softplus and the reciprocal root as fixed sequences of fma, add, sub, mul, div and sqrt, each
//! correctly rounded, so that any device with IEEE f32 gives the same bits. Written for any lanes; the scalar functions
//! are the one-lane case. docs/numerics.md states the errors.

use super::lanes::Lanes;

/// Adding and subtracting it rounds to an integer, ties to even.
const MAGIC: f32 = 12_582_912.0;
/// Above it `2^n` would overflow: exp stays at its value there, about 2.39e38.
const EXP_HIGH: f32 = 88.376;
/// ln(2^-126), below which exp is subnormal and therefore 0.
const EXP_LOW: f32 = -87.336_54;
/// ln 2 in two parts: the first has 9 significant bits, so that its product with |n| <= 128 is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Least maximum relative error for (e^r - 1 - r) / r^2 on |r| <= ln(2)/2: 2^-28.3.
const EXP: [f32; 5] = [0.001_381_453_9, 0.008_368_745, 0.041_668_39, 0.166_665_21, 0.499_999_94];
/// Least maximum relative error for (ln(1 + f) - f + f^2/2) / f^3 on [sqrt(1/2) - 1, sqrt(2) - 1]: 2^-30.3.
const LOG: [f32; 9] = [
    0.067_466_415,
    -0.116_756_57,
    0.118_881_65,
    -0.124_055_885,
    0.142_195_52,
    -0.166_679_96,
    0.200_021_19,
    -0.250_000_1,
    0.333_333_13,
];

/// `e^x`: 0 below ln(2^-126), constant above 88.376, NaN stays NaN.
pub fn exp(x: f32) -> f32 {
    // SAFETY: one lane needs no instruction set; here and below.
    unsafe { exp_lanes(x) }
}

/// `ln x`; minus infinity below 2^-126 and for negative x.
pub fn log(x: f32) -> f32 {
    // SAFETY: as in `exp`.
    unsafe { log_lanes(x) }
}

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f32) -> f32 {
    // SAFETY: as in `exp`.
    unsafe { sigmoid_lanes(x) }
}

/// `x / (1 + e^-x)`; 0 below -88, where it is above -5.4e-37.
pub fn silu(x: f32) -> f32 {
    // SAFETY: as in `exp`.
    unsafe { silu_lanes(x) }
}

/// `ln(1 + e^x)`; x above 20, where the two round to the same number.
pub fn softplus(x: f32) -> f32 {
    // SAFETY: as in `exp`.
    unsafe { softplus_lanes(x) }
}

/// `1 / sqrt(x)`: a root and a division, both correctly rounded.
pub fn rsqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}

/// # Safety
/// The processor has the instruction set of `L`; here and below.
#[inline(always)]
pub(super) unsafe fn exp_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the caller's promise; here and below.
    unsafe {
        let top = L::splat(EXP_HIGH);
        let x = L::select_lt(top, x, top, x);
        let shifted = x.fma(L::splat(std::f32::consts::LOG2_E), L::splat(MAGIC));
        let n = shifted.sub(L::splat(MAGIC));
        let high = n.fma(L::splat(-LN2_HIGH), x);
        let low = n.mul(L::splat(LN2_LOW));
        let r = high.sub(low);
        // What roundings of r and of 1 + r lost: together a third of a unit in the last place of the result.
        let one = L::splat(1.0);
        let near = one.add(r);
        let lost = high.sub(r).sub(low).add(r.sub(near.sub(one)));
        let mut q = L::splat(EXP[0]);
        for &c in &EXP[1..] {
            q = q.fma(r, L::splat(c));
        }
        let p = near.add(q.fma(r.mul(r), lost));
        L::select_lt(x, L::splat(EXP_LOW), L::splat(0.0), p.mul(shifted.pow2()))
    }
}

/// # Safety
/// As [`exp_lanes`].
#[inline(always)]
pub(super) unsafe fn log_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the caller's promise.
    unsafe {
        let (e, m) = x.split_exponent();
        let f = m.sub(L::splat(1.0));
        let mut q = L::splat(LOG[0]);
        for &c in &LOG[1..] {
            q = q.fma(f, L::splat(c));
        }
        let f2 = f.mul(f);
        let small = e.fma(L::splat(LN2_LOW), q.mul(f2.mul(f)));
        let small = f2.fma(L::splat(-0.5), small);
        let y = e.fma(L::splat(LN2_HIGH), small.add(f));
        L::select_lt(x, L::splat(f32::MIN_POSITIVE), L::splat(f32::NEG_INFINITY), y)
    }
}

/// # Safety
/// As [`exp_lanes`].
#[inline(always)]
pub(super) unsafe fn sigmoid_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the caller's promise.
    unsafe { L::splat(1.0).div(L::splat(1.0).add(exp_lanes(L::splat(0.0).sub(x)))) }
}

/// # Safety
/// As [`exp_lanes`].
#[inline(always)]
pub(super) unsafe fn silu_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the caller's promise.
    unsafe {
        let y = x.div(L::splat(1.0).add(exp_lanes(L::splat(0.0).sub(x))));
        L::select_lt(x, L::splat(-88.0), L::splat(0.0), y)
    }
}

/// # Safety
/// As [`exp_lanes`].
#[inline(always)]
pub(super) unsafe fn softplus_lanes<L: Lanes>(x: L) -> L {
    // SAFETY: the caller's promise.
    unsafe {
        let one = L::splat(1.0);
        let e = exp_lanes(x);
        let w = one.add(e);
        // What rounding lost of e when 1 was added; the tangent of the logarithm gives it back.
        let lost = e.sub(w.sub(one));
        let y = log_lanes(w).add(lost.div(w));
        L::select_lt(L::splat(20.0), x, x, y)
    }
}

#[cfg(test)]
#[path = "math_tests.rs"]
mod tests;
