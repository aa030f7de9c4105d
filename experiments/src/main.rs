//! The `straw` command: one file per verb. Data goes to stdout, talk to stderr.
//! Exit code 0: fine; 1: the check found a difference; 2: could not run.

mod answer;
mod bytes_per_token;
mod chat;
mod checkpoint;
mod corpus;
mod cost_file;
mod digest;
mod draft;
mod engine;
mod explain;
mod generate;
mod inspect;
mod logits;
mod model;
mod output;
mod policy_file;
mod prompts;
mod quality;
mod quantize;
mod report;
mod roofline;
mod selftest;
mod simulate;
mod stats;
mod stop;
mod synth;
mod text;
mod tour;
mod trace;
mod trace_file;
mod tree_view;
mod tune;
mod verify_law;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::{io, process::ExitCode};

/// Speculative decoding that nobody can observe: verify it, tune it, measure it
#[derive(Parser, Debug)]
#[command(name = "straw", version, after_help = "Without a verb: a one-minute tour on the embedded model.")]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// One prompt decoded plainly and with drafts: the same bits, in fewer passes
    Tour(tour::TourArgs),
    /// Answer a message, and say what it cost
    Generate(generate::GenerateArgs),
    /// Check claims
    #[command(subcommand)]
    Verify(Claim),
    /// Measure what passes and drafts cost here, and advise
    Explain(explain::ExplainArgs),
    /// Show what a model folder or file holds and what it costs to run
    Inspect(inspect::InspectArgs),
    /// Write the logits of tokens and of a tree behind them to a file
    Logits(logits::LogitsArgs),
    /// Play one configuration: tokens per pass and tokens per second
    Simulate(simulate::SimulateArgs),
    /// Find the budget and shape for a machine and its workloads
    Tune(tune::TuneArgs),
    /// Record what a drafter proposes and what the target thinks of it
    Trace(trace::TraceArgs),
    /// Say how far a model's distributions are from another's on text
    Quality(quality::QualityArgs),
    /// Write an 8-bit or 4-bit copy of a model folder
    Quantize(quantize::QuantizeArgs),
    /// Run every shader case on a device and compare bits with the processor
    Selftest(selftest::SelftestArgs),
    /// Say what memory bandwidth allows plain decoding, here and on published machines
    Roofline(roofline::RooflineArgs),
    /// Write a model of random weights in a given shape, to measure speed and memory
    Synth(synth::SynthArgs),
}

/// What `straw verify` can check.
#[derive(Subcommand, Debug)]
enum Claim {
    /// Every acceptance rule against enumerated output laws
    Law(verify_law::LawArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("straw: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode> {
    match &cli.verb {
        None => tour::run(&tour::TourArgs::default()),
        Some(Verb::Tour(args)) => tour::run(args),
        Some(Verb::Generate(args)) => generate::run(args),
        Some(Verb::Verify(Claim::Law(args))) => verify_law::run(args),
        Some(Verb::Explain(args)) => explain::run(args),
        Some(Verb::Inspect(args)) => inspect::run(args),
        Some(Verb::Logits(args)) => logits::run(args),
        Some(Verb::Simulate(args)) => simulate::run(args),
        Some(Verb::Tune(args)) => tune::run(args),
        Some(Verb::Trace(args)) => trace::run(args),
        Some(Verb::Quality(args)) => quality::run(args),
        Some(Verb::Roofline(args)) => roofline::run(args),
        Some(Verb::Quantize(args)) => quantize::run(args),
        Some(Verb::Selftest(args)) => selftest::run(args),
        Some(Verb::Synth(args)) => synth::run(args),
    }
}

/// The reader of our output went away: it has what it wanted.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
