//! `straw tune`: every budget of every shape for every workload on one machine, and advice within the noise of the data.
//! Writes the whole curve as CSV and JSON, a report that opens without a network, and a policy for `generate --budget auto`.

use crate::{
    cost_file::CostArgs,
    output::{Output, table},
    policy_file::PolicyFile,
    report::{Page, Row, Tree},
    simulate::of_workload,
    trace_file,
};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sim::{
    AcceptanceModel, AcceptanceSpec, CostModel, Replay, Run, ShapeKind, SimError, TableFit, Trace, TuneOptions, Tuning, Workload,
    fit_table, tune,
};
use specdec::DrafterKind;
use std::{
    fmt::Write as _,
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

/// Arguments of `straw tune`.
#[derive(Args, Debug)]
#[command(
    after_help = "Example: straw tune --trace weaver.jsonl.zst --trace mtp.jsonl.zst --cost cost.json --policy policy.json"
)]
pub struct TuneArgs {
    /// Recorded trace of one drafter; may be given several times
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// A law of acceptance instead of a trace, as NAME=SPEC (specs: see straw simulate); may be given several times
    #[arg(long, value_name = "NAME=SPEC")]
    acceptance: Vec<String>,
    #[command(flatten)]
    cost: CostArgs,
    /// Tree shape to try; may be given several times [default: a drafter's own, or all for a law]
    #[arg(long, value_name = "SHAPE")]
    shape: Vec<ShapeKind>,
    /// Only this workload; may be given several times [default: each, and all prompts together]
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// Deepest draft
    #[arg(long, value_name = "N", default_value_t = 32)]
    max_depth: usize,
    /// Prompts to play for a law
    #[arg(long, value_name = "N", default_value_t = 64)]
    prompts: usize,
    /// Rounds of each prompt of a law
    #[arg(long, value_name = "N", default_value_t = 400)]
    rounds: usize,
    /// Seed of bootstrap and laws
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Refuse advice when the 95 % interval of the best is wider than plus or minus this share
    #[arg(long, value_name = "SHARE", default_value_t = 0.05)]
    max_noise: f64,
    /// Configurations within this share of the best are ties, which go to the smaller budget
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    tie: f64,
    /// Folder of the results [default: notebooks-data/DATE-tune-MACHINE]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Machine in that folder's name
    #[arg(long, value_name = "NAME", default_value = "here")]
    machine: String,
    /// Also write a policy for straw generate --budget auto --policy FILE; needs a dense trace
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Where acceptance comes from.
enum Input {
    Trace(Box<Trace>),
    Law(String, AcceptanceModel),
}

#[derive(Serialize)]
struct Report {
    cost: String,
    out: PathBuf,
    advice: Vec<Row>,
    /// Workloads without advice, and why.
    refused: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<TableFit>,
}

/// Tunes.
pub fn run(args: &TuneArgs) -> Result<ExitCode> {
    let inputs = inputs(args)?;
    let (name, cost) = args.cost.load()?;
    let cells = cells(args, &inputs)?;
    let bar = ProgressBar::new(cells.len() as u64).with_style(ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
    let (mut rows, mut advised, mut refused): (Vec<Row>, Vec<Row>, Vec<String>) = Default::default();
    for (workload, input) in &cells {
        bar.set_message(workload.clone());
        match cell(args, &cost, workload, input) {
            Ok((drafter, tuning)) => {
                let row = |i: usize| row(workload, &drafter, &tuning, i);
                rows.extend((0..tuning.curve.len()).map(row));
                let best = row(tuning.advice);
                match advised.iter_mut().find(|a| a.workload == *workload) {
                    Some(known) if known.tokens_per_s >= best.tokens_per_s => {}
                    Some(known) => *known = best,
                    None => advised.push(best),
                }
            }
            // Too little data for one workload is no reason to keep the others' answers back.
            Err(error) if matches!(error.downcast_ref(), Some(SimError::TooNoisy { .. })) => {
                refused.push(format!("{workload}: {error}"))
            }
            Err(error) => return Err(error.context(workload.clone())),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let date = today();
    let out_dir = args.out.clone().unwrap_or_else(|| Path::new("notebooks-data").join(format!("{date}-tune-{}", args.machine)));
    let tree = inputs.iter().find_map(|input| match input {
        Input::Trace(trace) => shown(trace),
        Input::Law(..) => None,
    });
    let page = Page { cost: name.clone(), date, rows, advice: advised.clone(), tree };
    write(args, &out_dir, &page, &inputs)?;
    let policy = match &args.policy {
        Some(path) => Some(policy(path, args, &name, &cost, &inputs, &advised)?),
        None => None,
    };
    let report = Report { cost: name, out: out_dir, advice: advised, refused, policy };
    report.print(args)?;
    Ok(if report.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

fn inputs(args: &TuneArgs) -> Result<Vec<Input>> {
    let mut inputs = Vec::new();
    for path in &args.trace {
        inputs.push(Input::Trace(Box::new(trace_file::read(path)?)));
    }
    for text in &args.acceptance {
        let (name, spec) =
            text.split_once('=').with_context(|| format!("--acceptance {text:?} has no name, expected NAME=SPEC"))?;
        match spec.parse()? {
            AcceptanceSpec::Model(model) => inputs.push(Input::Law(name.into(), model)),
            AcceptanceSpec::Trace(path) => bail!("--acceptance {text:?} is a trace, not a law (give --trace {})", path.display()),
        }
    }
    ensure!(!inputs.is_empty(), "nothing to tune for, expected a trace or a law (give --trace FILE or --acceptance NAME=SPEC)");
    Ok(inputs)
}

/// Every workload of every input.
fn cells<'a>(args: &TuneArgs, inputs: &'a [Input]) -> Result<Vec<(String, &'a Input)>> {
    let mut cells = Vec::new();
    for input in inputs {
        match input {
            Input::Law(name, _) => cells.push((name.clone(), input)),
            Input::Trace(trace) => {
                let known = trace.workloads();
                let mut wanted: Vec<String> = args.workload.clone();
                if wanted.is_empty() {
                    wanted = known.iter().map(|w| (*w).to_owned()).collect();
                    if known.len() > 1 {
                        wanted.push(ALL.into());
                    }
                }
                cells.extend(wanted.into_iter().map(|w| (w, input)));
            }
        }
    }
    Ok(cells)
}

/// Name of all prompts together.
const ALL: &str = "all";

fn cell(args: &TuneArgs, cost: &CostModel, workload: &str, input: &Input) -> Result<(String, Tuning)> {
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let run = Run { prompts: args.prompts, rounds_per_prompt: args.rounds, context: 0, seed: args.seed, repetition: 0, threads };
    let mut options =
        TuneOptions { max_depth: args.max_depth, max_noise: args.max_noise, tie: args.tie, ..TuneOptions::new(run) };
    if !args.shape.is_empty() {
        options.shapes = args.shape.clone();
    }
    match input {
        Input::Law(_, model) => Ok(("law".into(), tune(Workload::Model(model), cost, &options)?)),
        Input::Trace(trace) => {
            let drafter = trace.header().drafter.name.clone();
            if args.shape.is_empty() {
                options.shapes = own_shapes(&drafter);
            }
            let cost = cost.for_drafter(&drafter)?;
            let part = of_workload((**trace).clone(), Some(workload).filter(|&w| w != ALL))?;
            let tuning = tune(Workload::Trace { trace: &part, steps: trace.header().draft_steps }, &cost, &options)?;
            Ok((drafter, tuning))
        }
    }
}

/// The shape that a drafter of straw draws; both that a trace holds for others.
fn own_shapes(drafter: &str) -> Vec<ShapeKind> {
    match drafter.parse::<DrafterKind>() {
        Ok(DrafterKind::DflashTree | DrafterKind::Weaver) => vec![ShapeKind::BestFirst],
        Ok(_) => vec![ShapeKind::Chain],
        Err(_) => vec![ShapeKind::Chain, ShapeKind::BestFirst],
    }
}

fn row(workload: &str, drafter: &str, tuning: &Tuning, i: usize) -> Row {
    let p = &tuning.curve[i];
    Row {
        workload: workload.into(),
        drafter: drafter.into(),
        shape: p.shape.to_string(),
        budget: p.budget,
        tau: p.tau,
        tau_low: p.tau_ci.low,
        tau_high: p.tau_ci.high,
        tokens_per_s: p.tokens_per_s,
        tokens_per_s_low: p.tokens_per_s_ci.low,
        tokens_per_s_high: p.tokens_per_s_ci.high,
        speedup: p.speedup,
        speedup_low: p.speedup_ci.low,
        speedup_high: p.speedup_ci.high,
        break_even_tau: p.break_even_tau,
        ties_with_best: p.ties_with_best,
    }
}

/// The round with the longest accepted path, the first of equals.
fn shown(trace: &Trace) -> Option<Tree> {
    let longest = trace.rounds().iter().map(|r| r.accepted.len()).max()?;
    let round = trace.rounds().iter().find(|r| r.accepted.len() == longest)?;
    Some(Tree::new(round, &trace.header().drafter.name))
}

fn write(args: &TuneArgs, dir: &Path, page: &Page, inputs: &[Input]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let put = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())
    };
    let mut csv = String::from(
        "workload,drafter,shape,budget,tokens_per_pass,tokens_per_pass_low,tokens_per_pass_high,tokens_per_s,tokens_per_s_low,\
         tokens_per_s_high,speed_ratio,speed_ratio_low,speed_ratio_high,break_even_tokens_per_pass,ties_with_best\n",
    );
    for r in &page.rows {
        // A shape may hold commas.
        writeln!(
            csv,
            "{},{},\"{}\",{},{:.4},{:.4},{:.4},{:.3},{:.3},{:.3},{:.4},{:.4},{:.4},{:.4},{}",
            r.workload,
            r.drafter,
            r.shape,
            r.budget,
            r.tau,
            r.tau_low,
            r.tau_high,
            r.tokens_per_s,
            r.tokens_per_s_low,
            r.tokens_per_s_high,
            r.speedup,
            r.speedup_low,
            r.speedup_high,
            r.break_even_tau,
            r.ties_with_best
        )?;
    }
    put("curves.csv", csv)?;
    put("advice.json", serde_json::to_string_pretty(&page.advice)? + "\n")?;
    let sources: Vec<serde_json::Value> = inputs
        .iter()
        .zip(args.trace.iter().map(|p| p.display().to_string()).chain(args.acceptance.iter().cloned()))
        .map(|(input, given)| match input {
            Input::Trace(trace) => {
                let h = trace.header();
                serde_json::json!({"given": given, "model": h.model, "drafter": h.drafter, "prompts": h.prompts.len(), "rounds": trace.rounds().len(), "roots": h.roots})
            }
            Input::Law(..) => serde_json::json!({"given": given}),
        })
        .collect();
    let manifest = serde_json::json!({
        "what": "simulated tokens per pass and tokens per second of every budget and shape; 95 % intervals clustered by prompt",
        "straw": env!("CARGO_PKG_VERSION"), "date": page.date, "cost": page.cost, "sources": sources, "seed": args.seed,
        "max_noise": args.max_noise, "tie": args.tie, "max_depth": args.max_depth, "machine": args.machine,
    });
    put("manifest.json", serde_json::to_string_pretty(&manifest)? + "\n")?;
    put("report.html", page.html()?)
}

/// Fits and writes the policy of the drafter that the last advice names.
fn policy(path: &Path, args: &TuneArgs, name: &str, cost: &CostModel, inputs: &[Input], advised: &[Row]) -> Result<TableFit> {
    let best = advised.iter().find(|a| a.workload == ALL).or(advised.last());
    let best = best.context("no workload has advice, so there is no policy (record more prompts)")?;
    let of_best = |input: &&Input| matches!(input, Input::Trace(t) if t.header().drafter.name == best.drafter);
    let Some(Input::Trace(trace)) = inputs.iter().find(of_best) else {
        bail!("a law of acceptance has no drafter, so it makes no policy (give --trace FILE)")
    };
    let drafter: DrafterKind = best.drafter.parse().context("a policy is for one of straw's drafters")?;
    let part = of_workload((**trace).clone(), Some(best.workload.as_str()).filter(|&w| w != ALL))?;
    let replay = Replay::new(&part, &best.shape.parse()?, args.max_depth)?;
    let run = Run { prompts: 1, rounds_per_prompt: 1, context: 0, seed: args.seed, repetition: 0, threads: NonZeroUsize::MIN };
    let fit = fit_table(&replay, trace.header().draft_steps, &cost.for_drafter(&best.drafter)?, &run)?;
    let file = PolicyFile::new(trace.header().model.hash.clone(), name.into(), drafter, best.budget, fit.table.clone());
    fs::write(path, serde_json::to_string_pretty(&file)? + "\n").with_context(|| path.display().to_string())?;
    Ok(fit)
}

impl Report {
    fn print(&self, args: &TuneArgs) -> Result<()> {
        let mut out = Output::stdout();
        if args.json {
            out.json(self)?;
        } else {
            let header = ["workload", "drafter", "shape", "budget", "tokens/pass", "tokens/s", "over plain", "95 %"];
            let mut rows = vec![header.map(str::to_owned).to_vec()];
            for a in &self.advice {
                rows.push(vec![
                    a.workload.clone(),
                    if a.budget.is_off() { "off".into() } else { a.drafter.clone() },
                    a.shape.clone(),
                    a.budget.to_string(),
                    format!("{:.2}", a.tau),
                    format!("{:.1}", a.tokens_per_s),
                    format!("{:.2}", a.speedup),
                    format!("{:.2} to {:.2}", a.speedup_low, a.speedup_high),
                ]);
            }
            out.line(table(&rows).join("\n"))?;
            if let Some(fit) = &self.policy {
                out.line(format_args!(
                    "policy: {:.1} tokens/s on prompts it was not fitted on, budget {} {:.1}, plain {:.1}",
                    fit.table_tokens_per_s, fit.fixed, fit.fixed_tokens_per_s, fit.plain_tokens_per_s
                ))?;
            }
            out.line(format_args!("{}: curves.csv, advice.json, manifest.json, report.html", self.out.display()))?;
        }
        self.refused.iter().for_each(|reason| eprintln!("straw: {reason}"));
        Ok(())
    }
}

/// The day in UTC as `YYYY-MM-DD` (Hinnant's days-to-civil).
fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let z = (seconds / 86_400) as i64 + 719_468;
    let (era, doe) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    format!("{:04}-{month:02}-{day:02}", yoe + era * 400 + i64::from(month <= 2))
}
