//! Integer sums on x86. Without VNNI: |w| times sign(x, w) by maddubs, whose pair sums (at most 2 * 127 * 127) fit 16 bits,
//! then madd by ones. With VNNI: w + 128 as unsigned bytes, the 128 taken back by the start value.
#![allow(unsafe_op_in_unsafe_fn, reason = "each body is a few intrinsics of the type's own instruction set")]

use super::dot::Dot;
use super::lanes_x86::{Avx2, Avx512};
use std::arch::x86_64::*;

/// Turns a signed byte w into the unsigned w + 128.
const FLIP: i8 = i8::MIN;

// SAFETY of both implementations: as in `lanes_x86`.
impl<const VNNI: bool> Dot for Avx2<VNNI> {
    type Sum = [__m256i; 2];
    type Part = [__m256i; 2];
    /// w and |w|; with VNNI w + 128 twice.
    type Codes = [[__m256i; 2]; 2];
    type Nibbles = [__m256i; 2];
    type Quad = __m256i;

    #[inline(always)]
    unsafe fn start(total: i32) -> Self::Sum {
        [_mm256_set1_epi32(if VNNI { -128 * total } else { 0 }); 2]
    }
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> Self::Codes {
        let w = [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())];
        if VNNI {
            let flip = _mm256_set1_epi8(FLIP);
            let w = [_mm256_xor_si256(w[0], flip), _mm256_xor_si256(w[1], flip)];
            return [w, w];
        }
        [w, [_mm256_abs_epi8(w[0]), _mm256_abs_epi8(w[1])]]
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> [Self::Nibbles; 2] {
        let (a, b) = (_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast()));
        let low = _mm256_set1_epi8(15);
        let high = |x| _mm256_and_si256(_mm256_srli_epi16::<4>(x), low);
        [[_mm256_and_si256(a, low), _mm256_and_si256(b, low)], [high(a), high(b)]]
    }
    #[inline(always)]
    unsafe fn quad(p: *const i8) -> __m256i {
        _mm256_set1_epi32(p.cast::<i32>().read_unaligned())
    }
    #[inline(always)]
    unsafe fn dot(sum: Self::Sum, [w, size]: Self::Codes, x: __m256i) -> Self::Sum {
        if VNNI {
            return [_mm256_dpbusd_avx_epi32(sum[0], w[0], x), _mm256_dpbusd_avx_epi32(sum[1], w[1], x)];
        }
        let ones = _mm256_set1_epi16(1);
        let dot = |sum, w, size| {
            let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones))
        };
        [dot(sum[0], w[0], size[0]), dot(sum[1], w[1], size[1])]
    }
    #[inline(always)]
    unsafe fn part() -> Self::Part {
        [_mm256_setzero_si256(); 2]
    }
    #[inline(always)]
    unsafe fn dot_part(part: Self::Part, w: Self::Nibbles, x: __m256i) -> Self::Part {
        if VNNI {
            return [_mm256_dpbusd_avx_epi32(part[0], w[0], x), _mm256_dpbusd_avx_epi32(part[1], w[1], x)];
        }
        let dot = |part, w| _mm256_add_epi16(part, _mm256_maddubs_epi16(w, x));
        [dot(part[0], w[0]), dot(part[1], w[1])]
    }
    #[inline(always)]
    unsafe fn add_part(sum: Self::Sum, part: Self::Part) -> Self::Sum {
        let wide = |part| if VNNI { part } else { _mm256_madd_epi16(part, _mm256_set1_epi16(1)) };
        [_mm256_add_epi32(sum[0], wide(part[0])), _mm256_add_epi32(sum[1], wide(part[1]))]
    }
    #[inline(always)]
    unsafe fn zero() -> Self::Sum {
        [_mm256_setzero_si256(); 2]
    }
    #[inline(always)]
    unsafe fn float(sum: Self::Sum) -> Self {
        Self(_mm256_cvtepi32_ps(sum[0]), _mm256_cvtepi32_ps(sum[1]))
    }
}

impl<const VNNI: bool> Dot for Avx512<VNNI> {
    type Sum = __m512i;
    type Part = __m512i;
    /// |w| and where w is negative; with VNNI w + 128.
    type Codes = (__m512i, __mmask64);
    type Nibbles = __m512i;
    type Quad = __m512i;

    #[inline(always)]
    unsafe fn start(total: i32) -> __m512i {
        _mm512_set1_epi32(if VNNI { -128 * total } else { 0 })
    }
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> Self::Codes {
        let w = _mm512_loadu_si512(p.cast());
        if VNNI { (_mm512_xor_si512(w, _mm512_set1_epi8(FLIP)), 0) } else { (_mm512_abs_epi8(w), _mm512_movepi8_mask(w)) }
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> [__m512i; 2] {
        let (w, low) = (_mm512_loadu_si512(p.cast()), _mm512_set1_epi8(15));
        [_mm512_and_si512(w, low), _mm512_and_si512(_mm512_srli_epi16::<4>(w), low)]
    }
    #[inline(always)]
    unsafe fn quad(p: *const i8) -> __m512i {
        _mm512_set1_epi32(p.cast::<i32>().read_unaligned())
    }
    #[inline(always)]
    unsafe fn dot(sum: __m512i, (w, negative): Self::Codes, x: __m512i) -> __m512i {
        if VNNI {
            return _mm512_dpbusd_epi32(sum, w, x);
        }
        let signed = _mm512_mask_sub_epi8(x, negative, _mm512_setzero_si512(), x);
        let pairs = _mm512_maddubs_epi16(w, signed);
        _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
    }
    #[inline(always)]
    unsafe fn part() -> __m512i {
        _mm512_setzero_si512()
    }
    #[inline(always)]
    unsafe fn dot_part(part: __m512i, w: __m512i, x: __m512i) -> __m512i {
        if VNNI { _mm512_dpbusd_epi32(part, w, x) } else { _mm512_add_epi16(part, _mm512_maddubs_epi16(w, x)) }
    }
    #[inline(always)]
    unsafe fn add_part(sum: __m512i, part: __m512i) -> __m512i {
        _mm512_add_epi32(sum, if VNNI { part } else { _mm512_madd_epi16(part, _mm512_set1_epi16(1)) })
    }
    #[inline(always)]
    unsafe fn zero() -> __m512i {
        _mm512_setzero_si512()
    }
    #[inline(always)]
    unsafe fn float(sum: __m512i) -> Self {
        Self(_mm512_cvtepi32_ps(sum))
    }
}
