//! `straw selftest`: runs every shader that has cases on a device and compares with the processor, bit by bit.
//! Knows nothing of models: it asks whether a device computes what docs/numerics.md says.

use crate::output::{Output, table, yes};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use fast::gpu::{Gpu, KERNELS, KernelReport, parity};
use indicatif::ProgressBar;
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `straw selftest`.
#[derive(Args, Debug)]
#[command(after_help = "Example: straw selftest --device emulator --seed 1")]
pub struct SelftestArgs {
    /// Device that runs the shaders
    #[arg(long, value_enum, default_value = "emulator")]
    device: Device,
    /// Order of groups and lanes on the emulator; 0 is the rising one
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u32,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Devices that run shaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// The first NVIDIA GPU
    Cuda,
    /// Every thread a fiber on the processor; needs clang++
    Emulator,
}

#[derive(Serialize)]
struct Report {
    device: &'static str,
    name: String,
    kernels: Vec<KernelReport>,
    without_cases: Vec<&'static str>,
    all_equal: bool,
}

/// Compares and prints; exit code 1 when a bit differs.
pub fn run(args: &SelftestArgs) -> Result<ExitCode> {
    if args.device != Device::Emulator && args.seed != 0 {
        bail!("--seed {}: found device cuda, expected --device emulator, whose lane order can be chosen", args.seed);
    }
    let bar = ProgressBar::new_spinner().with_message("comparing kernels");
    bar.enable_steady_tick(Duration::from_millis(200));
    let gpu = match args.device {
        Device::Cuda => Gpu::cuda()?,
        Device::Emulator => Gpu::emulator(args.seed)?,
    };
    let kernels = parity(&gpu)?;
    bar.finish_and_clear();
    let without_cases = KERNELS.iter().map(|k| k.name).filter(|name| kernels.iter().all(|r| r.name != *name)).collect();
    let all_equal = kernels.iter().all(|r| r.bitwise_equal);
    let report = Report { device: gpu.kind(), name: gpu.name(), kernels, without_cases, all_equal };
    let mut out = Output::stdout();
    let code = if all_equal { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        out.json(&report)?;
        return Ok(code);
    }
    let mut rows = vec![["kernel", "cases", "same bits", "largest difference"].map(str::to_owned).to_vec()];
    for r in &report.kernels {
        rows.push(vec![r.name.into(), r.cases.to_string(), yes(r.bitwise_equal).into(), format!("{:.1e}", r.max_abs_error)]);
    }
    out.line(format_args!("{}: {}", report.device, report.name))?;
    out.line(table(&rows).join("\n"))?;
    if !report.without_cases.is_empty() {
        out.line(format_args!("not compared yet: {}", report.without_cases.join(", ")))?;
    }
    out.line(if all_equal { "every compared kernel has the processor's bits" } else { "FAILED" })?;
    Ok(code)
}
