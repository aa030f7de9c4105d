//! What `straw quantize` says at the end: sizes, bits per weight, errors of tensors, acceptance. Measures nothing.

use super::{
    acceptance::Acceptance,
    codes::Width,
    partial::Partial,
    plan::{Job, Plan},
    settings::Settings,
};
use crate::{
    checkpoint::Checkpoint,
    output::{self, Output},
};
use anyhow::Result;
use serde::Serialize;
use std::path::PathBuf;

/// Tensors with the largest errors that are printed without being asked for.
const WORST: usize = 3;

/// The document.
#[derive(Serialize)]
pub struct Report {
    /// The old folder.
    pub model: PathBuf,
    /// The new folder.
    pub out: PathBuf,
    /// What was asked for.
    pub settings: Settings,
    /// Tokens calibrated on.
    pub calibration_tokens: usize,
    /// The target and its drafters.
    pub parts: Vec<Part>,
    /// Of each drafter, before and after; empty where not measured.
    pub acceptance: Vec<Acceptance>,
}

/// One checkpoint of the folder: the target with its MTP head, or a drafter.
#[derive(Serialize)]
pub struct Part {
    part: &'static str,
    quantised_tensors: usize,
    kept_tensors: usize,
    left_out_tensors: usize,
    bytes_before: u64,
    bytes: u64,
    /// Bits of the new file per number of the old one.
    bits_per_weight: f64,
    /// Root of sum (w - value of code)^2 / sum w^2 over all quantised weights, both transformed where there is a transform.
    relative_rms_error: f64,
    tensors: Vec<TensorError>,
}

/// A quantised tensor.
#[derive(Serialize)]
struct TensorError {
    name: String,
    shape: Vec<usize>,
    bits: u32,
    relative_rms_error: f64,
}

impl Part {
    /// Of a finished file.
    pub fn new(part: &'static str, source: &Checkpoint, plan: &Plan, file: &Partial) -> Self {
        let (mut error, mut norm, mut parameters, mut kept) = (0.0, 0.0, 0, 0);
        let mut tensors = Vec::new();
        for job in &plan.jobs {
            let finished = file.finished(&job.name()).unwrap_or_default();
            match job {
                Job::Quantise { from, width, .. } => {
                    error += finished.error;
                    norm += finished.norm;
                    parameters += from.elements();
                    tensors.push(TensorError {
                        name: from.name.clone(),
                        shape: from.shape.clone(),
                        bits: if *width == Width::Eight { 8 } else { 4 },
                        relative_rms_error: relative(finished.error, finished.norm),
                    });
                }
                Job::Copy { from, .. } => {
                    parameters += from.elements();
                    kept += 1;
                }
                Job::Signs { .. } => {}
            }
        }
        let bytes = plan.size - plan.header.len() as u64;
        Self {
            part,
            quantised_tensors: tensors.len(),
            kept_tensors: kept,
            left_out_tensors: source.entries().count() - tensors.len() - kept,
            bytes_before: source.entries().map(|e| e.bytes).sum(),
            bytes,
            bits_per_weight: 8.0 * bytes as f64 / parameters.max(1) as f64,
            relative_rms_error: relative(error, norm),
            tensors,
        }
    }
}

fn relative(error: f64, norm: f64) -> f64 {
    if norm > 0.0 { (error / norm).sqrt() } else { 0.0 }
}

impl Report {
    /// Readable lines; every tensor's when asked.
    pub fn print(&self, out: &mut Output, every: bool) -> Result<()> {
        for p in &self.parts {
            out.line(format_args!(
                "{}: {} tensors quantised, {} kept, {} left out; {} -> {}, {:.2} bits per weight; relative rms error {:.5}",
                p.part,
                p.quantised_tensors,
                p.kept_tensors,
                p.left_out_tensors,
                output::bytes(p.bytes_before),
                output::bytes(p.bytes),
                p.bits_per_weight,
                p.relative_rms_error
            ))?;
            let mut tensors: Vec<&TensorError> = p.tensors.iter().collect();
            if !every {
                tensors.sort_by(|a, b| b.relative_rms_error.total_cmp(&a.relative_rms_error));
                tensors.truncate(WORST);
            }
            for t in tensors {
                out.line(format_args!("  {:.5} at {} bits {:?} {}", t.relative_rms_error, t.bits, t.shape, t.name))?;
            }
        }
        for a in &self.acceptance {
            out.line(format_args!("{}: {:.3} tokens per pass before, {:.3} after", a.drafter.name(), a.before, a.after))?;
        }
        let bytes = self.parts.iter().map(|p| p.bytes).sum();
        out.line(format_args!("wrote {} ({})", self.out.display(), output::bytes(bytes)))?;
        Ok(())
    }
}
