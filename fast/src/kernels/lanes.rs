//! Lanes: the few elementwise operations from which every kernel is written once, for all instruction sets.
//! `f32` itself is the one-lane implementation and thereby the definition; SIMD types hold 16 lanes. No operation looks
//! across lanes, so a wide kernel equals the scalar one bit for bit by construction.

use super::dot::Dot;
use super::pool::Pool;

/// Instruction sets. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, one lane: the definition.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI.
    AvxVnni,
    /// AVX-512 F and BW.
    Avx512,
    /// AVX-512 with VNNI.
    Avx512Vnni,
    /// aarch64 with NEON.
    Neon,
    /// NEON with dot products.
    NeonDot,
}

impl Isa {
    /// Every set, each architecture's widest last.
    pub const ALL: [Self; 7] =
        [Self::Scalar, Self::Avx2, Self::AvxVnni, Self::Avx512, Self::Avx512Vnni, Self::Neon, Self::NeonDot];

    /// The widest available here.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Self::Scalar)
    }

    pub(crate) fn available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => is_x86_feature_detected!("avxvnni") && Self::Avx2.available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") && Self::Avx2.available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => is_x86_feature_detected!("avx512vnni") && Self::Avx512.available(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Self::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
            _ => false,
        }
    }
}

/// `WIDTH` f32 lanes.
///
/// # Safety
/// Every method needs the instruction set of its type; `load*` and `store` need `WIDTH` elements at the pointer.
pub(super) trait Lanes: Dot {
    const WIDTH: usize;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn load_bf16(p: *const u16) -> Self;
    unsafe fn load_f16(p: *const u16) -> Self;
    unsafe fn load_i8(p: *const i8) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    unsafe fn div(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// `a < b ? yes : no`.
    unsafe fn select_lt(a: Self, b: Self, yes: Self, no: Self) -> Self;
    /// The nine low bits of the representation moved to the exponent of 1: `2^n` for `self = n + 1.5 * 2^23`.
    unsafe fn pow2(self) -> Self;
    /// `(e, m)` with `self = m * 2^e`, `m` in [sqrt(1/2), sqrt(2)), for positive normal `self`.
    unsafe fn split_exponent(self) -> (Self, Self);
    /// Rounded to integers, ties to even, as `WIDTH` bytes; for values of at most 127.
    unsafe fn store_codes(self, p: *mut i8);
    /// The Hadamard transform of 32 floats in place: strides 1, 2, 4, 8, 16, the pair `(i, i + s)` becomes `(a + b, a - b)`.
    #[inline(always)]
    unsafe fn butterflies(x: *mut f32) {
        // SAFETY: the caller promised 32 floats.
        let x = unsafe { &mut *x.cast::<[f32; 32]>() };
        for stride in [1, 2, 4, 8, 16] {
            for pair in x.chunks_exact_mut(2 * stride) {
                let (low, high) = pair.split_at_mut(stride);
                low.iter_mut().zip(high).for_each(|(a, b)| (*a, *b) = (*a + *b, *a - *b));
            }
        }
    }

    /// `self > b ? self : b`: the other operand where one is NaN in `self`.
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: as the caller promised.
        unsafe { Self::select_lt(b, self, self, b) }
    }
}

/// Bits of the largest f32 below sqrt(1/2), plus one: where [`Lanes::split_exponent`] starts an octave.
pub(super) const OCTAVE: u32 = 0x3f35_04f3;

// The one-lane methods are unsafe only because the trait's are: pointers aside, nothing here needs a promise.
impl Lanes for f32 {
    const WIDTH: usize = 1;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        x
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller promised one element.
        unsafe { p.read() }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller promised one element.
        f32::from_bits(u32::from(unsafe { p.read() }) << 16)
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: the caller promised one element.
        half::f16::from_bits(unsafe { p.read() }).to_f32()
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: the caller promised one element.
        f32::from(unsafe { p.read() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller promised one element.
        unsafe { p.write(self) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        self + b
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        self - b
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        self * b
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        self / b
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        self.mul_add(b, c)
    }
    #[inline(always)]
    unsafe fn select_lt(a: Self, b: Self, yes: Self, no: Self) -> Self {
        if a < b { yes } else { no }
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        f32::from_bits((self.to_bits() << 23).wrapping_add(1f32.to_bits()))
    }
    #[inline(always)]
    unsafe fn split_exponent(self) -> (Self, Self) {
        let above = self.to_bits().wrapping_sub(OCTAVE);
        (((above as i32) >> 23) as f32, f32::from_bits((above & 0x007f_ffff) + OCTAVE))
    }
    #[inline(always)]
    unsafe fn store_codes(self, p: *mut i8) {
        // SAFETY: the caller promised one element.
        unsafe { p.write(self.round_ties_even() as i8) }
    }
}

/// A weight or cache element that widens to f32 exactly.
pub(super) trait Stored: Copy + Default + Send + Sync {
    /// # Safety
    /// As [`Lanes::load`].
    unsafe fn widen<L: Lanes>(p: *const Self) -> L;
}

/// bf16 bits.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(super) struct Bf16(pub u16);
/// f16 bits.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub(super) struct F16(pub u16);

impl Stored for f32 {
    #[inline(always)]
    unsafe fn widen<L: Lanes>(p: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load(p) }
    }
}
impl Stored for Bf16 {
    #[inline(always)]
    unsafe fn widen<L: Lanes>(p: *const Self) -> L {
        // SAFETY: the caller's promise; the layout is a u16's.
        unsafe { L::load_bf16(p.cast()) }
    }
}
impl Stored for F16 {
    #[inline(always)]
    unsafe fn widen<L: Lanes>(p: *const Self) -> L {
        // SAFETY: the caller's promise; the layout is a u16's.
        unsafe { L::load_f16(p.cast()) }
    }
}
impl Stored for i8 {
    #[inline(always)]
    unsafe fn widen<L: Lanes>(p: *const Self) -> L {
        // SAFETY: the caller's promise.
        unsafe { L::load_i8(p) }
    }
}

/// A kernel's part, written for any lanes. Implementations are `#[inline(always)]`, so that they compile with the
/// instruction set of the function they are called from.
pub(super) trait Kernel {
    /// # Safety
    /// The processor has the instruction set of `L`.
    unsafe fn run<L: Lanes>(self);
}

impl Pool {
    /// Runs a kernel's part with the pool's instruction set.
    pub(super) fn vectorise<K: Kernel>(&self, kernel: K) {
        match self.isa() {
            // SAFETY: one lane needs no instruction set.
            Isa::Scalar => unsafe { kernel.run::<f32>() },
            // SAFETY: `Pool::with_isa` checked that the processor has it, here and below.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { super::lanes_x86::on_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { super::lanes_x86::on_avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => unsafe { super::lanes_x86::on_avx_vnni(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => unsafe { super::lanes_x86::on_avx512_vnni(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => unsafe { super::lanes_neon::on_neon(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => unsafe { super::lanes_neon::on_neon_dot(kernel) },
            #[allow(unreachable_patterns, reason = "the sets of other architectures")]
            isa => unreachable!("{isa:?} was refused when the pool was made"),
        }
    }
}
