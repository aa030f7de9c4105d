//! `straw roofline`: the ceiling that memory sets to plain decoding, bandwidth / bytes read per token: on this machine,
//! measured, and on the machines of data/machines.json. Runs no model.

use crate::{
    bytes_per_token::{Scheme, bytes_per_token},
    model,
    output::{self, Output, table},
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::{hint::black_box, path::PathBuf, process::ExitCode, time::Instant};

/// Arguments of `straw roofline`.
#[derive(Args, Debug)]
#[command(after_help = "Example: straw roofline --bytes 5200000000 --bandwidth 153")]
pub struct RooflineArgs {
    /// Model folder [default: the embedded straw-tiny]
    #[arg(long, value_name = "DIR", conflicts_with = "bytes")]
    model: Option<PathBuf>,
    /// Bytes read per token, instead of a model's
    #[arg(long, value_name = "N")]
    bytes: Option<u64>,
    /// Bandwidth in GB/s (10^9 bytes), instead of measuring this machine's
    #[arg(long, value_name = "GB/s")]
    bandwidth: Option<f64>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Larger than the caches of any processor to date.
const ARRAY_BYTES: usize = 512 << 20;
/// Interleaved runs behind each median.
const REPETITIONS: usize = 7;

#[derive(Serialize)]
struct Report {
    /// GB/s that all threads read together; absent when given.
    read_gb_s: Option<f64>,
    /// GB/s of a copy, bytes read and bytes written counted.
    copy_gb_s: Option<f64>,
    threads: Option<usize>,
    /// What the ceilings below are made with.
    bandwidth_gb_s: f64,
    model: Option<PathBuf>,
    ceilings: Vec<Ceiling>,
    machines: Vec<Published>,
}

#[derive(Serialize)]
struct Ceiling {
    scheme: String,
    bytes_per_token: u64,
    tokens_per_s: f64,
}

/// A row of data/machines.json.
#[derive(Deserialize)]
struct Machine {
    machine: String,
    bandwidth_gb_s: f64,
    model: String,
    bytes_per_token: u64,
    measured_tokens_per_s: Vec<Measured>,
    source: String,
}

#[derive(Deserialize, Serialize)]
struct Measured {
    engine: String,
    tokens_per_s: f64,
}

#[derive(Serialize)]
struct Published {
    machine: String,
    model: String,
    bandwidth_gb_s: f64,
    bytes_per_token: u64,
    ceiling_tokens_per_s: f64,
    measured: Vec<Measured>,
    source: String,
}

/// Measures and prints.
pub fn run(args: &RooflineArgs) -> Result<ExitCode> {
    ensure!(args.bytes != Some(0), "a token reads 0 bytes, expected at least 1 (set --bytes)");
    let valid = args.bandwidth.is_none_or(|b| b.is_finite() && b > 0.0);
    ensure!(valid, "the bandwidth is {} GB/s, expected above 0 (set --bandwidth)", args.bandwidth.unwrap_or(0.0));
    let (dir, sizes) = match args.bytes {
        Some(bytes) => (None, vec![("as given".to_owned(), bytes)]),
        None => {
            let dir = model::find(args.model.as_deref())?;
            let schemes = Scheme::of_folder(&dir)?;
            let sized = schemes.into_iter().map(|s| Ok((s.name().to_owned(), bytes_per_token(&dir, s)?)));
            (Some(dir.clone()), sized.collect::<Result<Vec<_>>>()?)
        }
    };
    let measured = args.bandwidth.is_none().then(measure);
    let bandwidth = args.bandwidth.or(measured.as_ref().map(|m| m.0)).context("a bandwidth is given or measured")?;
    let per_second = |bytes: u64, gb_s: f64| gb_s * 1e9 / bytes as f64;
    let report = Report {
        read_gb_s: measured.map(|m| m.0),
        copy_gb_s: measured.map(|m| m.1),
        threads: measured.map(|_| threads()),
        bandwidth_gb_s: bandwidth,
        model: dir,
        ceilings: sizes
            .into_iter()
            .map(|(scheme, bytes)| Ceiling { scheme, bytes_per_token: bytes, tokens_per_s: per_second(bytes, bandwidth) })
            .collect(),
        machines: machines()?,
    };
    let mut out = Output::stdout();
    if args.json {
        out.json(&report)?;
    } else {
        report.print(&mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn machines() -> Result<Vec<Published>> {
    let rows: Vec<Machine> = serde_json::from_str(include_str!("../data/machines.json")).context("data/machines.json")?;
    let published = |m: Machine| Published {
        ceiling_tokens_per_s: m.bandwidth_gb_s * 1e9 / m.bytes_per_token as f64,
        machine: m.machine,
        model: m.model,
        bandwidth_gb_s: m.bandwidth_gb_s,
        bytes_per_token: m.bytes_per_token,
        measured: m.measured_tokens_per_s,
        source: m.source,
    };
    Ok(rows.into_iter().map(published).collect())
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Medians of read and copy bandwidth, GB/s, in interleaved runs over memory that no cache holds.
fn measure() -> (f64, f64) {
    let words = ARRAY_BYTES / 8;
    let (from, mut to) = (vec![1u64; words], vec![2u64; words]);
    let part = words.div_ceil(threads());
    let (mut reads, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        std::thread::scope(|scope| {
            from.chunks(part).for_each(|part| drop(scope.spawn(|| black_box(sum(part)))));
        });
        reads.push(ARRAY_BYTES as f64 / 1e9 / start.elapsed().as_secs_f64());
        let start = Instant::now();
        std::thread::scope(|scope| {
            let parts = from.chunks(part).zip(to.chunks_mut(part));
            parts.for_each(|(from, to)| drop(scope.spawn(|| to.copy_from_slice(from))));
        });
        black_box(&to);
        copies.push(2.0 * ARRAY_BYTES as f64 / 1e9 / start.elapsed().as_secs_f64());
    }
    (median(reads), median(copies))
}

/// Eight sums, so that the processor waits for memory and not for additions.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 8];
    for words in words.chunks_exact(8) {
        sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
    }
    sums.iter().fold(0, |a, &b| a.wrapping_add(b))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Report {
    fn print(&self, out: &mut Output) -> Result<()> {
        match (self.read_gb_s, self.copy_gb_s, self.threads) {
            (Some(read), Some(copy), Some(threads)) => {
                out.line(format_args!(
                    "memory           {read:.1} GB/s read, {copy:.1} GB/s copied ({threads} threads, medians of {REPETITIONS})"
                ))?;
            }
            _ => out.line(format_args!("memory           {} GB/s as given", self.bandwidth_gb_s))?,
        }
        if let Some(model) = &self.model {
            out.line(format_args!("model            {}", model.display()))?;
        }
        let mut rows = vec![["scheme", "per token", "ceiling"].map(str::to_owned).to_vec()];
        for c in &self.ceilings {
            rows.push(vec![c.scheme.clone(), output::bytes(c.bytes_per_token), format!("{:.1} tokens/s", c.tokens_per_s)]);
        }
        rows.push(Vec::new());
        for m in &self.machines {
            let ceiling = format!("{:.1} tokens/s", m.ceiling_tokens_per_s);
            rows.push(vec![
                format!("{}, {} GB/s, {}", m.machine, m.bandwidth_gb_s, m.model),
                output::bytes(m.bytes_per_token),
                ceiling,
            ]);
            for r in &m.measured {
                let share = 100.0 * r.tokens_per_s / m.ceiling_tokens_per_s;
                rows.push(vec![
                    format!("  {} published", r.engine),
                    format!("{share:.0} %"),
                    format!("{:.1} tokens/s", r.tokens_per_s),
                ]);
            }
        }
        table(&rows).into_iter().try_for_each(|line| out.line(line))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_article_has_a_ceiling_of_29_tokens_per_second() {
        let m5 = machines().unwrap().into_iter().find(|m| m.bandwidth_gb_s == 153.0).unwrap();
        assert!((m5.ceiling_tokens_per_s - 29.4).abs() < 0.05, "{}", m5.ceiling_tokens_per_s);
        assert!(m5.measured.iter().all(|r| r.tokens_per_s < m5.ceiling_tokens_per_s), "plain decoding stays below its ceiling");
    }
}
