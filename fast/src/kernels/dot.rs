//! Exact integer sums: 4 inputs' codes of a row times the codes of as many outputs as there are lanes. One lane is the
//! definition; every instruction set gives the same integers, whatever its order. Knows no scales and no groups.

/// Quads of inputs that a [`Dot::Part`] can take: 8 * 2 products of at most 15 * 127 stay inside 16 bits.
pub(super) const PART: usize = 8;

/// Integer arithmetic of `WIDTH` outputs ([`Lanes`](super::lanes::Lanes)).
///
/// # Safety
/// Every method needs the instruction set of its type.
pub(super) trait Dot: Copy {
    /// One 32-bit sum per output.
    type Sum: Copy;
    /// Sums of up to [`PART`] quads of 4-bit codes.
    type Part: Copy;
    /// Signed codes, -127 to 127, of 4 inputs.
    type Codes: Copy;
    /// Unsigned codes, 0 to 15, of 4 inputs.
    type Nibbles: Copy;
    /// 4 inputs of one row, -127 to 127.
    type Quad: Copy;

    /// The empty sum over inputs whose codes of the row add up to `total`.
    unsafe fn start(total: i32) -> Self::Sum;
    /// `4 * WIDTH` bytes at `p`, 4 an output.
    unsafe fn codes(p: *const u8) -> Self::Codes;
    /// The low and the high halves of `4 * WIDTH` bytes at `p`: two quads.
    unsafe fn nibbles(p: *const u8) -> [Self::Nibbles; 2];
    /// 4 bytes at `p`.
    unsafe fn quad(p: *const i8) -> Self::Quad;
    /// `sum + codes . x`.
    unsafe fn dot(sum: Self::Sum, codes: Self::Codes, x: Self::Quad) -> Self::Sum;
    /// The empty part.
    unsafe fn part() -> Self::Part;
    /// `part + codes . x`.
    unsafe fn dot_part(part: Self::Part, codes: Self::Nibbles, x: Self::Quad) -> Self::Part;
    /// The sum of an empty sum's parts.
    unsafe fn add_part(sum: Self::Sum, part: Self::Part) -> Self::Sum;
    /// No sum yet, for parts: parts need no total.
    unsafe fn zero() -> Self::Sum;
    /// The sums as f32, exact below 2^24.
    unsafe fn float(sum: Self::Sum) -> Self;
}

impl Dot for f32 {
    type Sum = i32;
    type Part = i32;
    type Codes = [i8; 4];
    type Nibbles = [u8; 4];
    type Quad = [i8; 4];

    #[inline(always)]
    unsafe fn start(_: i32) -> i32 {
        0
    }
    #[inline(always)]
    unsafe fn codes(p: *const u8) -> [i8; 4] {
        // SAFETY: the caller promised 4 bytes; an array of bytes has no alignment.
        unsafe { p.cast::<[i8; 4]>().read() }
    }
    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> [[u8; 4]; 2] {
        // SAFETY: as in `codes`.
        let bytes = unsafe { p.cast::<[u8; 4]>().read() };
        [bytes.map(|b| b & 15), bytes.map(|b| b >> 4)]
    }
    #[inline(always)]
    unsafe fn quad(p: *const i8) -> [i8; 4] {
        // SAFETY: as in `codes`.
        unsafe { p.cast::<[i8; 4]>().read() }
    }
    #[inline(always)]
    unsafe fn dot(sum: i32, codes: [i8; 4], x: [i8; 4]) -> i32 {
        codes.iter().zip(x).fold(sum, |sum, (&w, x)| sum + i32::from(w) * i32::from(x))
    }
    #[inline(always)]
    unsafe fn part() -> i32 {
        0
    }
    #[inline(always)]
    unsafe fn dot_part(part: i32, codes: [u8; 4], x: [i8; 4]) -> i32 {
        codes.iter().zip(x).fold(part, |sum, (&w, x)| sum + i32::from(w) * i32::from(x))
    }
    #[inline(always)]
    unsafe fn add_part(sum: i32, part: i32) -> i32 {
        sum + part
    }
    #[inline(always)]
    unsafe fn zero() -> i32 {
        0
    }
    #[inline(always)]
    unsafe fn float(sum: i32) -> f32 {
        sum as f32
    }
}
