//! 16 lanes on aarch64: four NEON registers. Elementwise, as [`Lanes`] demands.
#![allow(unsafe_op_in_unsafe_fn, reason = "each body is intrinsics of the type's own instruction set")]

use super::lanes::{Kernel, Lanes, OCTAVE};
use std::arch::aarch64::*;

/// # Safety
/// The processor has NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn on_neon<K: Kernel>(kernel: K) {
    // SAFETY: this function's own promise.
    unsafe { kernel.run::<Neon<false>>() }
}

/// # Safety
/// The processor has NEON and dot products.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn on_neon_dot<K: Kernel>(kernel: K) {
    // SAFETY: this function's own promise.
    unsafe { kernel.run::<Neon<true>>() }
}

/// `SDOT`: the processor multiplies bytes and adds the products in one instruction ([`super::dot_neon`]).
#[derive(Clone, Copy)]
pub(super) struct Neon<const SDOT: bool>(pub(super) [float32x4_t; 4]);

// SAFETY of the implementation: the trait's promises are these intrinsics' needs (NEON; 16 readable or writable elements
// at a pointer, unaligned).
impl<const SDOT: bool> Lanes for Neon<SDOT> {
    const WIDTH: usize = 16;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([vdupq_n_f32(x); 4])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self([vld1q_f32(p.add(4 * 0)), vld1q_f32(p.add(4 * 1)), vld1q_f32(p.add(4 * 2)), vld1q_f32(p.add(4 * 3))])
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        let (a, b) = (vld1q_u16(p), vld1q_u16(p.add(8)));
        let wide = |half| vreinterpretq_f32_u32(vshll_n_u16::<16>(half));
        Self([wide(vget_low_u16(a)), wide(vget_high_u16(a)), wide(vget_low_u16(b)), wide(vget_high_u16(b))])
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // Stable Rust has no f16 vectors here: each element is widened alone.
        let mut wide = [0f32; 16];
        for (i, x) in wide.iter_mut().enumerate() {
            *x = half::f16::from_bits(p.add(i).read()).to_f32();
        }
        Self::load(wide.as_ptr())
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        let codes = vld1q_s8(p);
        let (a, b) = (vmovl_s8(vget_low_s8(codes)), vmovl_s8(vget_high_s8(codes)));
        let wide = |half| vcvtq_f32_s32(vmovl_s16(half));
        Self([wide(vget_low_s16(a)), wide(vget_high_s16(a)), wide(vget_low_s16(b)), wide(vget_high_s16(b))])
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for (i, x) in self.0.into_iter().enumerate() {
            vst1q_f32(p.add(4 * i), x);
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Self([
            vaddq_f32(self.0[0], b.0[0]),
            vaddq_f32(self.0[1], b.0[1]),
            vaddq_f32(self.0[2], b.0[2]),
            vaddq_f32(self.0[3], b.0[3]),
        ])
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        Self([
            vsubq_f32(self.0[0], b.0[0]),
            vsubq_f32(self.0[1], b.0[1]),
            vsubq_f32(self.0[2], b.0[2]),
            vsubq_f32(self.0[3], b.0[3]),
        ])
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        Self([
            vmulq_f32(self.0[0], b.0[0]),
            vmulq_f32(self.0[1], b.0[1]),
            vmulq_f32(self.0[2], b.0[2]),
            vmulq_f32(self.0[3], b.0[3]),
        ])
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        Self([
            vdivq_f32(self.0[0], b.0[0]),
            vdivq_f32(self.0[1], b.0[1]),
            vdivq_f32(self.0[2], b.0[2]),
            vdivq_f32(self.0[3], b.0[3]),
        ])
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Self([
            vfmaq_f32(c.0[0], self.0[0], b.0[0]),
            vfmaq_f32(c.0[1], self.0[1], b.0[1]),
            vfmaq_f32(c.0[2], self.0[2], b.0[2]),
            vfmaq_f32(c.0[3], self.0[3], b.0[3]),
        ])
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self, b: Self, yes: Self, no: Self) -> Self {
        Self([
            vbslq_f32(vcltq_f32(a.0[0], b.0[0]), yes.0[0], no.0[0]),
            vbslq_f32(vcltq_f32(a.0[1], b.0[1]), yes.0[1], no.0[1]),
            vbslq_f32(vcltq_f32(a.0[2], b.0[2]), yes.0[2], no.0[2]),
            vbslq_f32(vcltq_f32(a.0[3], b.0[3]), yes.0[3], no.0[3]),
        ])
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        let one = vdupq_n_u32(1f32.to_bits());
        let pow2 = |x| vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32::<23>(vreinterpretq_u32_f32(x)), one));
        Self([pow2(self.0[0]), pow2(self.0[1]), pow2(self.0[2]), pow2(self.0[3])])
    }
    #[inline(always)]
    unsafe fn split_exponent(self) -> (Self, Self) {
        let octave = vdupq_n_u32(OCTAVE);
        let above = |x| vsubq_u32(vreinterpretq_u32_f32(x), octave);
        let exponent = |x| vcvtq_f32_s32(vshrq_n_s32::<23>(vreinterpretq_s32_u32(above(x))));
        let fraction = |x| vreinterpretq_f32_u32(vaddq_u32(vandq_u32(above(x), vdupq_n_u32(0x007f_ffff)), octave));
        let [a, b, c, d] = self.0;
        let exponents = Self([exponent(a), exponent(b), exponent(c), exponent(d)]);
        (exponents, Self([fraction(a), fraction(b), fraction(c), fraction(d)]))
    }
    #[inline(always)]
    unsafe fn store_codes(self, p: *mut i8) {
        let words = |a, b| vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a)), vqmovn_s32(vcvtnq_s32_f32(b)));
        let [a, b, c, d] = self.0;
        vst1q_s8(p, vcombine_s8(vqmovn_s16(words(a, b)), vqmovn_s16(words(c, d))));
    }
    /// Five equal steps: neighbours apart, sums to the first half, differences to the second. A step takes the lowest stride
    /// and turns the places by one bit, so after five every place is back.
    #[inline(always)]
    unsafe fn butterflies(x: *mut f32) {
        let mut r = [vdupq_n_f32(0.0); 8];
        for (i, r) in r.iter_mut().enumerate() {
            *r = vld1q_f32(x.add(4 * i));
        }
        for _ in 0..5 {
            let mut next = r;
            for i in 0..4 {
                let (even, odd) = (vuzp1q_f32(r[2 * i], r[2 * i + 1]), vuzp2q_f32(r[2 * i], r[2 * i + 1]));
                next[i] = vaddq_f32(even, odd);
                next[i + 4] = vsubq_f32(even, odd);
            }
            r = next;
        }
        for (i, r) in r.into_iter().enumerate() {
            vst1q_f32(x.add(4 * i), r);
        }
    }
}
