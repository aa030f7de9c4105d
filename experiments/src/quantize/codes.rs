//! Codes and scales of one group of weights (docs/formats.md): 8-bit symmetric, or 4-bit with a zero point. A weight is
//! `scale * (code - zero)`, exact in f32. Knows one group at a time; nothing of tensors, files or calibration.

use half::bf16;

/// Code widths. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// -127 to 127 around zero; -128 is not used, so that a weight and its negative are equally representable.
    Eight,
    /// 0 to 15 around a zero point of 0 to 15.
    Four,
}

/// The values that a group can take: `scale * (code - zero)` for `low <= code <= high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Distance of two values; 0 when every weight of the group is 0 or below the smallest normal bf16.
    pub scale: bf16,
    /// The code of 0.
    pub zero: i32,
    low: f32,
    high: f32,
}

/// Scales tried below the one that clips nothing. Neighbours of bf16 differ by 2^-8 to 2^-7, so this reaches down to
/// between 0.88 and 0.94 of it: at 8 bits more clipping never pays.
const EIGHT_TRIED: u16 = 16;
/// Of the full range, the smallest share tried at 4 bits, and the step.
const FOUR_SMALLEST: f32 = 0.6;
const FOUR_STEP: f32 = 0.02;
/// Adding and subtracting it rounds an f32 below 2^22 to a whole number, half to even.
const ROUND: f32 = 12_582_912.0;

impl Width {
    /// The grid with the smallest sum of `importance * (w - value)^2` among the scales tried (and, at 4 bits, zero points).
    /// Equal sums go to the larger scale. `importance` is 1 everywhere when `None`.
    pub fn best_grid(self, group: &[f32], importance: Option<&[f32]>) -> Grid {
        let mut best = (f32::INFINITY, Grid { scale: bf16::ZERO, zero: 0, ..self.grid(bf16::ZERO, 0) });
        let mut consider = |grid: Grid| {
            let error = grid.error(group, importance);
            if error < best.0 {
                best = (error, grid);
            }
        };
        match self {
            Self::Eight => {
                let exact = group.iter().fold(0.0f32, |m, w| m.max(w.abs())) / 127.0;
                let Some(upper) = at_least(exact) else { return best.1 };
                let scales = (0..=EIGHT_TRIED).map(|down| bf16::from_bits(upper.to_bits().saturating_sub(down)));
                scales.filter(|&s| s >= bf16::MIN_POSITIVE).for_each(|scale| consider(self.grid(scale, 0)));
            }
            Self::Four => {
                // Zero is always a value: the zero point must be a code.
                let (low, high) = group.iter().fold((0.0f32, 0.0f32), |(l, h), &w| (l.min(w), h.max(w)));
                let mut share = 1.0;
                while share >= FOUR_SMALLEST {
                    let Some(scale) = at_least((high - low) * share / 15.0) else { return best.1 };
                    let middle = 7.5 - (high + low) / 2.0 / scale.to_f32();
                    for zero in [middle.floor(), middle.ceil()] {
                        consider(self.grid(scale, zero.clamp(0.0, 15.0) as i32));
                    }
                    share -= FOUR_STEP;
                }
            }
        }
        best.1
    }

    fn grid(self, scale: bf16, zero: i32) -> Grid {
        let (low, high) = match self {
            Self::Eight => (-127.0, 127.0),
            Self::Four => (0.0, 15.0),
        };
        Grid { scale, zero, low, high }
    }
}

impl Grid {
    /// The code nearest to a weight: `w / scale` rounded half to even, plus zero, clamped.
    pub fn code(&self, weight: f32) -> i32 {
        let scale = self.scale.to_f32();
        if scale == 0.0 { self.zero } else { self.nearest(weight, 1.0 / scale) as i32 }
    }

    /// The weight that a code stands for.
    pub fn value(&self, code: i32) -> f32 {
        self.scale.to_f32() * (code - self.zero) as f32
    }

    /// As a float; `w * (1 / scale)` instead of the quotient moves a code only where two are equally near to rounding.
    fn nearest(&self, weight: f32, inverse: f32) -> f32 {
        let (limit, zero) = (300.0, self.zero as f32);
        let steps = ((weight * inverse).clamp(-limit, limit) + ROUND) - ROUND;
        (steps + zero).clamp(self.low, self.high)
    }

    fn error(&self, group: &[f32], importance: Option<&[f32]>) -> f32 {
        let (scale, zero) = (self.scale.to_f32(), self.zero as f32);
        let inverse = 1.0 / scale;
        let square = |w: f32| {
            let e = w - scale * (self.nearest(w, inverse) - zero);
            e * e
        };
        match importance {
            None => group.iter().map(|&w| square(w)).sum(),
            Some(importance) => group.iter().zip(importance).map(|(&w, &i)| i * square(w)).sum(),
        }
    }
}

/// The smallest bf16 that is not below a scale; `None` below the smallest normal one, where engines flush.
fn at_least(exact: f32) -> Option<bf16> {
    let lower = bf16::from_bits((exact.to_bits() >> 16) as u16);
    let scale = if lower.to_f32() == exact { lower } else { bf16::from_bits(lower.to_bits() + 1) };
    (lower >= bf16::MIN_POSITIVE && scale.is_finite()).then_some(scale)
}

#[cfg(test)]
#[path = "codes_tests.rs"]
mod tests;
