//! Every kernel against the processor's kernels, bit for bit where docs/numerics.md promises it: what `straw selftest` runs on
//! a device and what the tests run on the emulator. Inputs are made by seed; sizes leave tiles, chunks and blocks unfilled.
//! Knows kernels, not models.

mod attention;
mod choices;
mod coded;
mod mixers;
mod products;
mod rows;

use super::{Gpu, GpuError};
use crate::kernels::{FlushGuard, Pool};
use serde::Serialize;

/// What the comparison of one kernel found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelReport {
    /// The kernel's name.
    pub name: &'static str,
    /// Comparisons made.
    pub cases: usize,
    /// All values have the processor's bits.
    pub bitwise_equal: bool,
    /// Largest difference; infinite where one side is not a number and the other is.
    pub max_abs_error: f32,
}

/// Runs the cases of all kernels, each with several sizes. Errors: a kernel that could not run or, on
/// the emulator, broke a rule.
pub fn parity(gpu: &Gpu) -> Result<Vec<KernelReport>, GpuError> {
    let mut cases = Cases::new(gpu);
    cases.functions()?;
    cases.elementwise()?;
    cases.norms()?;
    cases.rope()?;
    cases.moves()?;
    cases.embeddings()?;
    cases.linears()?;
    cases.activations()?;
    cases.coded()?;
    cases.choices()?;
    cases.sampling()?;
    cases.convolution()?;
    cases.delta_rule()?;
    cases.attention()?;
    cases.reports.sort_by_key(|r| r.name);
    Ok(cases.reports)
}

pub(super) struct Cases<'g> {
    gpu: &'g Gpu,
    pool: Pool,
    pub(super) reports: Vec<KernelReport>,
}

impl<'g> Cases<'g> {
    pub(super) fn new(gpu: &'g Gpu) -> Self {
        Self { gpu, pool: Pool::new(1), reports: vec![] }
    }
}

impl Cases<'_> {
    fn compare(&mut self, name: &'static str, got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len(), "{name}: the case is wrong");
        let error = got.iter().zip(want).filter(|(g, w)| g.to_bits() != w.to_bits()).map(|(g, w)| match (g - w).abs() {
            e if e.is_nan() => f32::INFINITY,
            e => e,
        });
        let (differing, largest) = error.fold((0, 0f32), |(n, max), e| (n + 1, max.max(e)));
        let at = self.reports.iter().position(|r| r.name == name).unwrap_or_else(|| {
            self.reports.push(KernelReport { name, cases: 0, bitwise_equal: true, max_abs_error: 0.0 });
            self.reports.len() - 1
        });
        let report = &mut self.reports[at];
        report.cases += 1;
        report.bitwise_equal &= differing == 0;
        report.max_abs_error = report.max_abs_error.max(largest);
    }

    /// Runs host arithmetic as the kernels do: without subnormals.
    fn host<T>(&self, f: impl FnOnce(&Pool) -> T) -> T {
        let _flush = FlushGuard::new();
        f(&self.pool)
    }
}

/// Groups of a grid whose threads take one element each.
fn groups(elements: usize, threads: u32) -> [u32; 3] {
    [elements.div_ceil(threads as usize) as u32, 1, 1]
}

/// Numbers of mixed sign and size, a seed's own.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    (0..n)
        .map(|_| {
            let bits = next();
            (bits as i32 as f32) * 2f32.powi(-31) * if bits & 7 == 0 { 8.0 } else { 0.5 }
        })
        .collect()
}

/// A tree of `rows` rows: every other row is drawn a parent among the rows before it, the others follow the last.
fn tree(rows: usize, seed: u32) -> Vec<Option<usize>> {
    let draws = numbers(rows, seed);
    let parent = |r: usize| if r.is_multiple_of(2) { draws[r].to_bits() as usize / 7 % r } else { r - 1 };
    (0..rows).map(|r| (r > 0).then(|| parent(r))).collect()
}

/// The rows from the root to `row`.
fn path(parents: &[Option<usize>], row: usize) -> Vec<usize> {
    let mut path: Vec<usize> = std::iter::successors(Some(row), |&r| parents[r]).collect();
    path.reverse();
    path
}
