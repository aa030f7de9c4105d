//! Carries out the jobs of one plan: copies, signs, and codes, rows at a time, so that memory does not grow with the model.
//! Calibration, where given, is walked layer by layer, and a layer's codes are chosen while its activations are at hand.

use super::{
    codes::{Grid, Width},
    feedback::Feedback,
    partial::{Finished, Partial},
    plan::{Job, Plan},
    settings::Settings,
    threads, transform,
};
use crate::checkpoint::{Checkpoint, Entry};
use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use reference::{GramWalk, InputGram};
use specdec::hadamard::signs;
use std::io::{self, Write};

/// Rows that a thread takes at a time.
const ROWS: usize = 32;
/// Share of the mean diagonal added to a Gram matrix.
const DAMPING: f64 = 0.01;

/// One checkpoint being converted.
pub struct Conversion<'a> {
    /// The old files.
    pub source: &'a Checkpoint,
    /// Layout of the new one.
    pub plan: &'a Plan<'a>,
    /// What was asked for; nothing where all tensors are copied.
    pub settings: Option<&'a Settings>,
    /// The new file.
    pub file: &'a mut Partial,
    /// Counts bytes of old tensors.
    pub bar: &'a ProgressBar,
}

impl Conversion<'_> {
    /// Does every job that is not finished.
    pub fn run(&mut self, walk: Option<GramWalk>) -> Result<()> {
        let plan = self.plan;
        if let Some(walk) = walk
            && plan.jobs.iter().any(|job| self.open(job))
        {
            self.calibrated(walk)?;
        }
        plan.jobs.iter().try_for_each(|job| self.job(job, None))
    }

    /// The linears of the target's layers and the head.
    fn calibrated(&mut self, mut walk: GramWalk) -> Result<()> {
        let plan = self.plan;
        let fed = |gram: &InputGram, job: &Job| gram.weights.contains(&job.name());
        while let Some(grams) = walk.next(threads())? {
            for gram in grams {
                let jobs: Vec<&Job> = plan.jobs.iter().filter(|job| fed(&gram, job) && self.open(job)).collect();
                if jobs.is_empty() {
                    continue;
                }
                let InputGram { weights, inputs, mut gram } = gram;
                if self.hadamard() {
                    transform::rotate_gram(&mut gram, &signs(inputs));
                }
                let feedback = Feedback::new(gram, inputs, DAMPING).with_context(|| weights.join(", "))?;
                jobs.into_iter().try_for_each(|job| self.job(job, Some(&feedback)))?;
            }
        }
        Ok(())
    }

    fn hadamard(&self) -> bool {
        self.settings.is_some_and(|s| s.hadamard > 0)
    }

    fn open(&self, job: &Job) -> bool {
        self.file.finished(&job.name()).is_none()
    }

    fn job(&mut self, job: &Job, feedback: Option<&Feedback>) -> Result<()> {
        if !self.open(job) {
            return Ok(());
        }
        let (finished, bytes) = match job {
            Job::Copy { from, to } => {
                let mut out = self.file.at(*to)?;
                let copied = io::copy(&mut self.source.bytes(from)?, &mut out)?;
                ensure!(copied == from.bytes, "{}: ended inside tensor {:?}", self.source.file(from).display(), from.name);
                out.flush()?;
                (Finished::default(), from.bytes)
            }
            Job::Signs { inputs, to } => {
                let values = signs(*inputs);
                let mut out = self.file.at(*to)?;
                out.write_all(&values.iter().flat_map(|s| s.to_le_bytes()).collect::<Vec<_>>())?;
                out.flush()?;
                (Finished::default(), 0)
            }
            Job::Quantise { from, width, codes, scales, zeros } => {
                (self.quantise(from, *width, (*codes, *scales, *zeros), feedback)?, from.bytes)
            }
        };
        self.file.finish(&job.name(), finished)?;
        self.bar.inc(bytes);
        Ok(())
    }

    fn quantise(
        &self,
        from: &Entry,
        width: Width,
        (codes, scales, zeros): (u64, u64, Option<u64>),
        feedback: Option<&Feedback>,
    ) -> Result<Finished> {
        let inputs = from.shape[1];
        let group = self.settings.map_or(inputs, |s| s.group);
        let signs = if self.hadamard() { signs(inputs) } else { Vec::new() };
        let (mut codes, mut scales) = (self.file.at(codes)?, self.file.at(scales)?);
        let mut zeros = zeros.map(|at| self.file.at(at)).transpose()?;
        let mut sum = Finished::default();
        let mut flush = |rows: &mut Vec<f32>| -> Result<()> {
            let part = rows.len().div_ceil(inputs * threads()).max(1) * inputs;
            let work = |rows: &mut [f32]| RowCodes::new(rows, inputs, width, group, &signs, feedback);
            let done: Vec<RowCodes> = std::thread::scope(|scope| {
                let running: Vec<_> = rows.chunks_mut(part).map(|rows| scope.spawn(|| work(rows))).collect();
                running.into_iter().map(|thread| thread.join().expect("arithmetic does not panic")).collect()
            });
            for rows in done {
                codes.write_all(&rows.codes)?;
                scales.write_all(&rows.scales)?;
                if let Some(zeros) = &mut zeros {
                    zeros.write_all(&rows.zeros)?;
                }
                sum.error += rows.error;
                sum.norm += rows.norm;
            }
            rows.clear();
            Ok(())
        };
        let (mut rows, room) = (Vec::new(), ROWS * threads() * inputs);
        self.source.rows(from, |_, row| {
            rows.extend_from_slice(row);
            if rows.len() == room { flush(&mut rows) } else { Ok(()) }
        })?;
        flush(&mut rows)?;
        codes.flush()?;
        scales.flush()?;
        zeros.map_or(Ok(()), |mut zeros| zeros.flush())?;
        Ok(sum)
    }
}

/// What some rows become, ready to be written.
struct RowCodes {
    codes: Vec<u8>,
    scales: Vec<u8>,
    zeros: Vec<u8>,
    error: f64,
    norm: f64,
}

impl RowCodes {
    /// `weights: [rows, inputs]`, transformed in place.
    fn new(weights: &mut [f32], inputs: usize, width: Width, group: usize, signs: &[i8], feedback: Option<&Feedback>) -> Self {
        if !signs.is_empty() {
            transform::fold(weights, signs);
        }
        let (codes, grids) = match feedback {
            Some(feedback) => feedback.quantise(weights, width, group),
            None => nearest(weights, inputs, width, group),
        };
        let groups = inputs.div_ceil(group);
        let (mut error, mut norm) = (0.0, 0.0);
        for (i, (&w, &code)) in weights.iter().zip(&codes).enumerate() {
            let grid: &Grid = &grids[i / inputs * groups + i % inputs / group];
            error += f64::from(w - grid.value(code)).powi(2);
            norm += f64::from(w).powi(2);
        }
        let scales = grids.iter().flat_map(|grid| grid.scale.to_le_bytes()).collect();
        let (codes, zeros) = match width {
            Width::Eight => (codes.iter().map(|&code| code as i8 as u8).collect(), Vec::new()),
            Width::Four => {
                let zeros: Vec<i32> = grids.iter().map(|grid| grid.zero).collect();
                (pack(&codes, inputs), pack(&zeros, groups))
            }
        };
        Self { codes, scales, zeros, error, norm }
    }
}

fn nearest(weights: &[f32], inputs: usize, width: Width, group: usize) -> (Vec<i32>, Vec<Grid>) {
    let groups = || weights.chunks_exact(inputs).flat_map(|row| row.chunks(group));
    let grids: Vec<Grid> = groups().map(|group| width.best_grid(group, None)).collect();
    let codes = groups().zip(&grids).flat_map(|(group, grid)| group.iter().map(|&w| grid.code(w))).collect();
    (codes, grids)
}

/// Rows of `len` 4-bit numbers, two a byte, the first in the low half; the unused half of an odd row is 0.
fn pack(numbers: &[i32], len: usize) -> Vec<u8> {
    let byte = |pair: &[i32]| (pair[0] | pair.get(1).map_or(0, |high| high << 4)) as u8;
    numbers.chunks_exact(len).flat_map(|row| row.chunks(2)).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_rows_end_with_half_a_byte() {
        assert_eq!(pack(&[1, 2, 3, 15, 0, 7], 3), [0x21, 0x03, 0x0f, 0x07]);
    }
}
