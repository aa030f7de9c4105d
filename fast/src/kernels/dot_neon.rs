//! Integer sums on aarch64: sdot where the processor has it, widening multiplications and pairwise sums elsewhere.
#![allow(unsafe_op_in_unsafe_fn, reason = "each body is a few intrinsics of the type's own instruction set")]

use super::dot::Dot;
use super::lanes_neon::Neon;
use std::arch::aarch64::*;

// SAFETY of the implementation: as in `lanes_neon`; `SDOT` is true only where the processor has the instruction.
impl<const SDOT: bool> Dot for Neon<SDOT> {
    type Sum = [int32x4_t; 4];
    type Part = [int32x4_t; 4];
    type Codes = [int8x16_t; 4];
    type Nibbles = [int8x16_t; 4];
    type Quad = int8x16_t;

    #[inline(always)]
    unsafe fn start(_: i32) -> Self::Sum {
        [vdupq_n_s32(0); 4]
    }
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> Self::Codes {
        let load = |i: usize| vld1q_s8(p.cast::<i8>().add(16 * i));
        [load(0), load(1), load(2), load(3)]
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> [Self::Nibbles; 2] {
        let load = |i: usize| vld1q_u8(p.add(16 * i));
        let low = |w| vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15)));
        let high = |w| vreinterpretq_s8_u8(vshrq_n_u8::<4>(w));
        let w = [load(0), load(1), load(2), load(3)];
        [[low(w[0]), low(w[1]), low(w[2]), low(w[3])], [high(w[0]), high(w[1]), high(w[2]), high(w[3])]]
    }
    #[inline(always)]
    unsafe fn quad(p: *const i8) -> int8x16_t {
        vreinterpretq_s8_s32(vdupq_n_s32(p.cast::<i32>().read_unaligned()))
    }
    #[inline(always)]
    unsafe fn dot(sum: Self::Sum, w: Self::Codes, x: int8x16_t) -> Self::Sum {
        let dot = |i: usize| dot16::<SDOT>(sum[i], w[i], x);
        [dot(0), dot(1), dot(2), dot(3)]
    }
    #[inline(always)]
    unsafe fn part() -> Self::Part {
        [vdupq_n_s32(0); 4]
    }
    #[inline(always)]
    unsafe fn dot_part(part: Self::Part, w: Self::Nibbles, x: int8x16_t) -> Self::Part {
        Self::dot(part, w, x)
    }
    #[inline(always)]
    unsafe fn add_part(sum: Self::Sum, part: Self::Part) -> Self::Sum {
        let add = |i: usize| vaddq_s32(sum[i], part[i]);
        [add(0), add(1), add(2), add(3)]
    }
    #[inline(always)]
    unsafe fn zero() -> Self::Sum {
        [vdupq_n_s32(0); 4]
    }
    #[inline(always)]
    unsafe fn float(sum: Self::Sum) -> Self {
        Self([vcvtq_f32_s32(sum[0]), vcvtq_f32_s32(sum[1]), vcvtq_f32_s32(sum[2]), vcvtq_f32_s32(sum[3])])
    }
}

/// Four outputs' sums of four products each.
///
/// # Safety
/// The processor has NEON, and sdot where `SDOT` says so.
#[inline(always)]
unsafe fn dot16<const SDOT: bool>(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    if SDOT {
        let mut sum = sum;
        // SAFETY: registers only; the caller promised the instruction. (vdotq_s32 is not stable Rust.)
        std::arch::asm!(
            ".arch_extension dotprod",
            "sdot {sum:v}.4s, {w:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum, w = in(vreg) w, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
        return sum;
    }
    let low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    let high = vpaddlq_s16(vmull_high_s8(w, x));
    vaddq_s32(sum, vpaddq_s32(low, high))
}
