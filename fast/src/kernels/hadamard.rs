//! The signs of the block-32 Hadamard transform as the kernels multiply with them, and a row read back from its rotated
//! form. The transform itself is `Lanes::butterflies` (lanes.rs); its meaning is in `specdec::hadamard`.

use super::flush::FlushGuard;
use super::lanes::Lanes;
use std::sync::Arc;

/// Inputs that are mixed with each other.
pub(super) const BLOCK: usize = specdec::hadamard::BLOCK;

/// The diagonal D of an input length: 1 or -1 for each input, shared by all matrices that read such inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Signs(Arc<[f32]>);

impl Signs {
    /// From stored signs; `None` if one is neither 1 nor -1, or is -1 behind the last whole block.
    pub fn new(signs: &[i8]) -> Option<Self> {
        let whole = signs.len() - signs.len() % BLOCK;
        let good = signs.iter().all(|&d| d == 1 || d == -1) && signs[whole..].iter().all(|&d| d == 1);
        good.then(|| Self(signs.iter().map(|&d| f32::from(d)).collect()))
    }

    pub(super) fn as_slice(&self) -> &[f32] {
        &self.0
    }

    /// `e = D H e'` in place: a row of W from a row of `W D H / 32`.
    pub(super) fn unfold(&self, row: &mut [f32]) {
        let _flush = FlushGuard::new();
        for (block, signs) in row.chunks_exact_mut(BLOCK).zip(self.0.chunks_exact(BLOCK)) {
            // SAFETY: a block has 32 floats; one lane needs no instruction set.
            unsafe { <f32 as Lanes>::butterflies(block.as_mut_ptr()) };
            block.iter_mut().zip(signs).for_each(|(x, d)| *x *= d);
        }
    }
}
