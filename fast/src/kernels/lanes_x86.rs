//! 16 lanes on x86: two AVX2 registers or one AVX-512 register. Elementwise, as [`Lanes`] demands.
#![allow(unsafe_op_in_unsafe_fn, reason = "each body is one intrinsic of the type's own instruction set")]

use super::lanes::{Kernel, Lanes, OCTAVE};
use std::arch::x86_64::*;

/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn on_avx2<K: Kernel>(kernel: K) {
    // SAFETY: this function's own promise.
    unsafe { kernel.run::<Avx2<false>>() }
}

/// # Safety
/// The processor has AVX2, FMA, F16C and AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(super) unsafe fn on_avx_vnni<K: Kernel>(kernel: K) {
    // SAFETY: this function's own promise.
    unsafe { kernel.run::<Avx2<true>>() }
}

/// # Safety
/// The processor has AVX-512 F and BW, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx2,fma,f16c")]
pub(super) unsafe fn on_avx512<K: Kernel>(kernel: K) {
    // SAFETY: this function's own promise.
    unsafe { kernel.run::<Avx512<false>>() }
}

/// # Safety
/// The processor has AVX-512 F, BW and VNNI, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn on_avx512_vnni<K: Kernel>(kernel: K) {
    // SAFETY: this function's own promise.
    unsafe { kernel.run::<Avx512<true>>() }
}

/// `VNNI`: the processor multiplies bytes and adds the products in one instruction ([`super::dot_x86`]).
#[derive(Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool>(pub(super) __m256, pub(super) __m256);

/// As [`Avx2`].
#[derive(Clone, Copy)]
pub(super) struct Avx512<const VNNI: bool>(pub(super) __m512);

// SAFETY of both implementations: the trait's promises are these intrinsics' needs (instruction set; 16 readable or
// writable elements at a pointer, unaligned).
impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    const WIDTH: usize = 16;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(_mm256_set1_ps(x), _mm256_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8)))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        let wide = |q| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(q))));
        Self(wide(p.cast()), wide(p.add(8).cast()))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        Self(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        let codes = _mm_loadu_si128(p.cast());
        let (low, high) = (_mm256_cvtepi8_epi32(codes), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes)));
        Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        _mm256_storeu_ps(p, self.0);
        _mm256_storeu_ps(p.add(8), self.1);
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Self(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1))
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        Self(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1))
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        Self(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1))
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        Self(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1))
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1))
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self, b: Self, yes: Self, no: Self) -> Self {
        let low = _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(a.0, b.0));
        Self(low, _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LT_OQ>(a.1, b.1)))
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // maxps gives its second operand unless the first is larger: the default form in one instruction.
        Self(_mm256_max_ps(self.0, b.0), _mm256_max_ps(self.1, b.1))
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        Self(pow2_avx2(self.0), pow2_avx2(self.1))
    }
    #[inline(always)]
    unsafe fn split_exponent(self) -> (Self, Self) {
        let (low, high) = (split_avx2(self.0), split_avx2(self.1));
        (Self(low.0, high.0), Self(low.1, high.1))
    }
    #[inline(always)]
    unsafe fn store_codes(self, p: *mut i8) {
        let halves = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
        let words = _mm256_permute4x64_epi64::<0xd8>(halves);
        _mm_storeu_si128(p.cast(), _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words)));
    }
    #[inline(always)]
    unsafe fn butterflies(x: *mut f32) {
        butterflies_avx2(x)
    }
}

/// The strides 1, 2 and 4 swap lanes inside a register; `fma(x, -1, swapped)` is exactly `swapped - x`.
///
/// # Safety
/// The processor has AVX2 and FMA; 32 floats at `x`.
#[inline(always)]
unsafe fn butterflies_avx2(x: *mut f32) {
    let signs = |negative: i32| {
        let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let minus = _mm256_cmpgt_epi32(_mm256_and_si256(lane, _mm256_set1_epi32(negative)), _mm256_setzero_si256());
        _mm256_blendv_ps(_mm256_set1_ps(1.0), _mm256_set1_ps(-1.0), _mm256_castsi256_ps(minus))
    };
    let (one, two, four) = (signs(1), signs(2), signs(4));
    let mut r = [_mm256_setzero_ps(); 4];
    for (i, r) in r.iter_mut().enumerate() {
        let x = _mm256_loadu_ps(x.add(8 * i));
        let x = _mm256_fmadd_ps(x, one, _mm256_permute_ps::<0b10_11_00_01>(x));
        let x = _mm256_fmadd_ps(x, two, _mm256_permute_ps::<0b01_00_11_10>(x));
        *r = _mm256_fmadd_ps(x, four, _mm256_permute2f128_ps::<1>(x, x));
    }
    let (a, b) = (_mm256_add_ps(r[0], r[1]), _mm256_sub_ps(r[0], r[1]));
    let (c, d) = (_mm256_add_ps(r[2], r[3]), _mm256_sub_ps(r[2], r[3]));
    let r = [_mm256_add_ps(a, c), _mm256_add_ps(b, d), _mm256_sub_ps(a, c), _mm256_sub_ps(b, d)];
    for (i, r) in r.into_iter().enumerate() {
        _mm256_storeu_ps(x.add(8 * i), r);
    }
}

/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn pow2_avx2(x: __m256) -> __m256 {
    let moved = _mm256_slli_epi32::<23>(_mm256_castps_si256(x));
    _mm256_castsi256_ps(_mm256_add_epi32(moved, _mm256_set1_epi32(1f32.to_bits() as i32)))
}

/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn split_avx2(x: __m256) -> (__m256, __m256) {
    let octave = _mm256_set1_epi32(OCTAVE as i32);
    let above = _mm256_sub_epi32(_mm256_castps_si256(x), octave);
    let exponent = _mm256_cvtepi32_ps(_mm256_srai_epi32::<23>(above));
    let fraction = _mm256_add_epi32(_mm256_and_si256(above, _mm256_set1_epi32(0x007f_ffff)), octave);
    (exponent, _mm256_castsi256_ps(fraction))
}

impl<const VNNI: bool> Lanes for Avx512<VNNI> {
    const WIDTH: usize = 16;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(_mm512_set1_ps(x))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(_mm512_loadu_ps(p))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        Self(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        _mm512_storeu_ps(p, self.0)
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Self(_mm512_add_ps(self.0, b.0))
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        Self(_mm512_sub_ps(self.0, b.0))
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        Self(_mm512_mul_ps(self.0, b.0))
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        Self(_mm512_div_ps(self.0, b.0))
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Self(_mm512_fmadd_ps(self.0, b.0, c.0))
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self, b: Self, yes: Self, no: Self) -> Self {
        Self(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a.0, b.0), no.0, yes.0))
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        Self(_mm512_max_ps(self.0, b.0))
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        let moved = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
        Self(_mm512_castsi512_ps(_mm512_add_epi32(moved, _mm512_set1_epi32(1f32.to_bits() as i32))))
    }
    #[inline(always)]
    unsafe fn split_exponent(self) -> (Self, Self) {
        let octave = _mm512_set1_epi32(OCTAVE as i32);
        let above = _mm512_sub_epi32(_mm512_castps_si512(self.0), octave);
        let exponent = _mm512_cvtepi32_ps(_mm512_srai_epi32::<23>(above));
        let fraction = _mm512_add_epi32(_mm512_and_si512(above, _mm512_set1_epi32(0x007f_ffff)), octave);
        (Self(exponent), Self(_mm512_castsi512_ps(fraction)))
    }
    #[inline(always)]
    unsafe fn store_codes(self, p: *mut i8) {
        _mm_storeu_si128(p.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(self.0)));
    }
    #[inline(always)]
    unsafe fn butterflies(x: *mut f32) {
        butterflies_avx2(x)
    }
}
