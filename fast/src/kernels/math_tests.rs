//! The functions against f64, in units of the last place, over dense sweeps of bit patterns; and their edges.

use super::*;
use crate::kernels::flush::FlushGuard;
use std::hint::black_box;

/// Every `STRIDE`-th bit pattern of either sign is tried: about two million per function.
const STRIDE: usize = 2003;

/// The largest error over all x in `from..to`, in units of the last place of the exact value, and where it is.
fn worst_ulp(range: std::ops::Range<f32>, f: fn(f32) -> f32, exact: fn(f64) -> f64) -> (f64, f32) {
    let _flush = FlushGuard::new();
    let mut worst = (0.0, 0.0);
    for x in patterns(range) {
        let want = exact(f64::from(x));
        if want.abs() < f64::from(f32::MIN_POSITIVE) {
            assert!(f(x).abs() <= f32::MIN_POSITIVE, "{x}: {} for {want}", f(x));
            continue;
        }
        let ulp = (want.abs().log2().floor() - 23.0).exp2();
        let error = (f64::from(f(x)) - want).abs() / ulp;
        if error > worst.0 || error.is_nan() {
            worst = (error, x);
        }
    }
    worst
}

fn patterns(range: std::ops::Range<f32>) -> impl Iterator<Item = f32> {
    let both = [0u32, 1 << 31].into_iter().flat_map(|sign| (0x0080_0000..0x7f80_0000u32).step_by(STRIDE).map(move |b| sign | b));
    both.map(f32::from_bits).chain([range.start, range.end]).filter(move |x| *x >= range.start && *x <= range.end)
}

fn check(name: &str, range: std::ops::Range<f32>, f: fn(f32) -> f32, exact: fn(f64) -> f64, bound: f64) {
    let (error, at) = worst_ulp(range, f, exact);
    println!("{name}: {error:.3} ulp at {at}");
    assert!(error <= bound, "{name}: {error} ulp at {at}");
}

#[test]
fn errors_stay_below_the_stated_bounds() {
    check("exp", -90.0..88.376, exp, f64::exp, 0.75);
    check("log", f32::MIN_POSITIVE..f32::MAX, log, f64::ln, 0.75);
    check("sigmoid", -87.0..90.0, sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 2.1);
    check("silu", -87.0..1e30, silu, |x| x / (1.0 + (-x).exp()), 2.1);
    check("softplus", -90.0..1e30, softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), 2.0);
    check("rsqrt", f32::MIN_POSITIVE..f32::MAX, rsqrt, |x| 1.0 / x.sqrt(), 1.5);
}

#[test]
fn edges_hold_no_surprises() {
    let _flush = FlushGuard::new();
    // A compiler that folds constants does not flush; black_box keeps the arithmetic at run time.
    let at = |f: fn(f32) -> f32, x: f32| black_box(f)(black_box(x));
    assert_eq!((at(exp, 0.0), at(exp, -88.0), at(exp, f32::NEG_INFINITY), at(exp, -1e38)), (1.0, 0.0, 0.0, 0.0));
    assert!(at(exp, f32::INFINITY).is_finite() && at(exp, f32::INFINITY) > 2.3e38 && at(exp, f32::NAN).is_nan());
    assert_eq!((at(log, 1.0), at(log, 0.0), at(log, -1.0)), (0.0, f32::NEG_INFINITY, f32::NEG_INFINITY));
    assert_eq!((at(sigmoid, 0.0), at(sigmoid, 100.0), at(sigmoid, -100.0)), (0.5, 1.0, 0.0));
    assert_eq!((at(silu, 0.0), at(silu, 100.0), at(silu, -1e30)), (0.0, 100.0, 0.0));
    assert_eq!((at(softplus, 1e6), at(softplus, -100.0)), (1e6, 0.0));
}

#[test]
fn exp_and_softplus_never_fall() {
    let _flush = FlushGuard::new();
    let falls = |f: fn(f32) -> f32, slack: f32| {
        (-90_000..88_000).any(|i| {
            let (x, y) = (i as f32 * 1e-3, (i + 1) as f32 * 1e-3);
            f(y) < f(x) * (1.0 - slack)
        })
    };
    assert!(!falls(exp, 0.0) && !falls(softplus, 0.0));
}
