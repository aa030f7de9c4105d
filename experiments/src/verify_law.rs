//! `straw verify law`: runs every acceptance rule against enumerated output laws.
//! A rule that claims to be lossless and is not makes the command fail; lossy rules are shown as what they are.

use crate::output::{Output, table, yes};
use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use reference::law;
use std::{fs, path::PathBuf, process::ExitCode};

/// Arguments of `straw verify law`.
#[derive(Args, Debug)]
#[command(after_help = "Example: straw verify law --cases tests/fixtures/acceptance/acceptance.json")]
pub struct LawArgs {
    /// Cases to run, in the format of tests/fixtures/acceptance [default: built in]
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Checks and prints; exit code 1 when the check fails.
pub fn run(args: &LawArgs) -> Result<ExitCode> {
    let cases = match &args.cases {
        None => law::built_in_cases(),
        Some(path) => {
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            law::read_cases(&text).with_context(|| path.display().to_string())?
        }
    };
    // Hidden by indicatif itself when stderr is not a terminal.
    let bar = ProgressBar::new(cases.len() as u64).with_style(ProgressStyle::with_template("{bar:30} {pos}/{len} cases")?);
    let report = law::check(&cases, &mut |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    let mut out = Output::stdout();
    let code = if report.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if args.json {
        out.json(&report)?;
        return Ok(code);
    }
    let mut rows = vec![["rule", "cases", "claims lossless", "worst error", "lossless"].map(str::to_owned).to_vec()];
    for r in &report.rules {
        let (claims, is) = (yes(r.claims_lossless).to_owned(), yes(r.lossless).to_owned());
        rows.push(vec![r.rule.clone(), r.cases.to_string(), claims, format!("{:.1e}", r.max_abs_error), is]);
    }
    out.line(table(&rows).join("\n"))?;
    let exact = if report.arithmetic_exact { "every fraction met exactly" } else { "a fraction is not met" };
    out.line(format_args!(
        "{} cases; the cases' own figures: worst error {:.1e}, {exact}",
        report.cases, report.arithmetic_max_abs_error
    ))?;
    let verdict = if report.failed() { "FAILED" } else { "every rule that claims losslessness is lossless" };
    out.line(verdict)?;
    Ok(code)
}
