//! The `straw` command: one file per verb. Data goes to stdout, talk to stderr.
//! Exit code 0: fine; 1: the check found a difference; 2: could not run.

mod chat;
mod checkpoint;
mod inspect;
mod model;
mod output;
mod q8;
mod quantize;
mod stop;
mod text;

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
    /// Show what a model folder or file holds and what it costs to run
    Inspect(inspect::InspectArgs),
    /// Write an 8-bit copy of a model folder, its drafters included
    Quantize(quantize::QuantizeArgs),
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
        None => Ok(ExitCode::SUCCESS),
        Some(Verb::Inspect(args)) => inspect::run(args),
        Some(Verb::Quantize(args)) => quantize::run(args),
    }
}

/// The reader of our output went away: it has what it wanted.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
