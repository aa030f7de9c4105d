//! Subnormals are flushed by rule: while a [`FlushGuard`] lives, f32 operations of its thread read subnormal inputs and
//! write subnormal results as zero (x86: MXCSR FTZ and DAZ; aarch64: FPCR.FZ), as Apple GPUs do.
//! Knows nothing of threads: the pool takes one guard per part.

/// Flushes subnormals on the current thread until dropped; then the former mode returns. Guards nest.
pub struct FlushGuard {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    before: ControlWord,
    // The mode belongs to the thread that set it.
    _this_thread: std::marker::PhantomData<*const ()>,
}

impl FlushGuard {
    /// Sets the mode.
    #[expect(clippy::new_without_default, reason = "a guard with a side effect should not come from a default")]
    pub fn new() -> Self {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        {
            let before = read();
            write(before | FLUSH);
            Self { before, _this_thread: std::marker::PhantomData }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Self { _this_thread: std::marker::PhantomData }
    }
}

impl Drop for FlushGuard {
    fn drop(&mut self) {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        write(self.before);
    }
}

#[cfg(target_arch = "x86_64")]
type ControlWord = u32;
/// FTZ (bit 15) and DAZ (bit 6).
#[cfg(target_arch = "x86_64")]
const FLUSH: ControlWord = 1 << 15 | 1 << 6;

#[cfg(target_arch = "x86_64")]
fn read() -> ControlWord {
    let mut word = 0;
    // SAFETY: stmxcsr stores four bytes at the address of a live u32.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack)) };
    word
}

#[cfg(target_arch = "x86_64")]
fn write(word: ControlWord) {
    // SAFETY: the word is one that the processor gave, with two mode bits added; exceptions stay masked.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
}

#[cfg(target_arch = "aarch64")]
type ControlWord = u64;
/// FZ (bit 24).
#[cfg(target_arch = "aarch64")]
const FLUSH: ControlWord = 1 << 24;

#[cfg(target_arch = "aarch64")]
fn read() -> ControlWord {
    let word;
    // SAFETY: reads the floating-point control register, which user code may read.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) word, options(nostack)) };
    word
}

#[cfg(target_arch = "aarch64")]
fn write(word: ControlWord) {
    // SAFETY: the word is one that the processor gave, with one mode bit added.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) word, options(nostack)) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    #[test]
    fn subnormals_vanish_under_the_guard_and_return_after_it() {
        let halve = || black_box(f32::MIN_POSITIVE) * black_box(0.5);
        let double = || black_box(f32::from_bits(1 << 22)) * black_box(2.0);
        assert!(halve() > 0.0 && double() > 0.0);
        {
            let _outer = FlushGuard::new();
            drop(FlushGuard::new());
            assert_eq!((halve(), double()), (0.0, 0.0));
            assert_eq!(black_box(f32::MIN_POSITIVE).mul_add(black_box(0.25), 0.0), 0.0);
        }
        assert!(halve() > 0.0 && double() > 0.0);
    }
}
