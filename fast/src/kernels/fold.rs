//! Sums over a vector in 128 lanes: lane j takes elements j, j + 128, ... in order; then the lanes are folded by halves,
//! 64, 32, ... 1 (lane j += lane j + h). The order depends on the vector's length alone.

use super::lanes::Lanes;

/// Lanes of a sum. A law of the arithmetic.
pub(super) const LANES: usize = 128;

/// What an element adds to its lane.
pub(super) trait Term: Copy {
    /// # Safety
    /// The processor has the instruction set of `L`.
    unsafe fn accumulate<L: Lanes>(self, x: L, lane: L) -> L;
}

/// `fma(x, x, lane)`.
#[derive(Clone, Copy)]
pub(super) struct Square;

impl Term for Square {
    #[inline(always)]
    unsafe fn accumulate<L: Lanes>(self, x: L, lane: L) -> L {
        // SAFETY: the caller's promise.
        unsafe { x.fma(x, lane) }
    }
}

/// # Safety
/// The processor has the instruction set of `L`.
#[inline(always)]
pub(super) unsafe fn sum<L: Lanes, T: Term>(x: &[f32], term: T) -> f32 {
    let mut lanes = [0f32; LANES];
    for chunk in x.chunks(LANES) {
        let whole = chunk.len() - chunk.len() % L::WIDTH;
        // SAFETY: the caller's promise; indices stay inside the chunk and the lanes.
        unsafe {
            let (x, lanes) = (chunk.as_ptr(), lanes.as_mut_ptr());
            for j in (0..whole).step_by(L::WIDTH) {
                term.accumulate(L::load(x.add(j)), L::load(lanes.add(j))).store(lanes.add(j));
            }
            for j in whole..chunk.len() {
                *lanes.add(j) = term.accumulate(*x.add(j), *lanes.add(j));
            }
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for j in 0..half {
            lanes[j] += lanes[j + half];
        }
        half /= 2;
    }
    lanes[0]
}
