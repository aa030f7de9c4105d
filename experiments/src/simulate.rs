//! `straw simulate`: one configuration played on a cost model, acceptance from a law or a trace; and laws fitted to a trace.

use crate::{
    cost_file::CostArgs,
    output::{Output, table},
    trace_file,
};
use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use sim::{AcceptanceSpec, Interval, ModelFit, Policy, Replay, Run, ShapeKind, Source, Trace, fit_all, simulate};
use specdec::Budget;
use std::{num::NonZeroUsize, process::ExitCode};

/// Arguments of `straw simulate`.
#[derive(Args, Debug)]
#[command(after_help = "Example: straw simulate --acceptance constant:0.8 --shape chain --budget 8 --cost m5-max")]
pub struct SimulateArgs {
    /// Acceptance: constant:RATE, positions:S1,S2,..., conditional:A1,A2,..., ranks:A11/A12,..., tau:TAU,DRAFTS,
    /// markov:EASY,HARD,SPAN,SPAN, beta:MEAN,CONC, beta-prompt:MEAN,CONC or trace:FILE
    #[arg(long, value_name = "SPEC")]
    acceptance: AcceptanceSpec,
    /// Tree: chain, best-first, sequoia, k-ary:K or frontier:EXPAND,WIDTH,ROUNDS; a trace has chain and best-first
    #[arg(long, value_name = "SHAPE", default_value = "best-first")]
    shape: ShapeKind,
    /// Nodes drafted per round: 0 or 3 to 32 [default: 16]
    #[arg(long, value_name = "N", conflicts_with = "policy")]
    budget: Option<Budget>,
    /// Instead of a budget: fixed:N, ema:ACCEPTED=N,..., confidence:P,MOST, bandit:N,N,..., cost-aware, marginal or oracle
    #[arg(long, value_name = "SPEC")]
    policy: Option<Policy>,
    #[command(flatten)]
    cost: CostArgs,
    /// Drafter whose cost counts, of a cost file that knows several [default: the trace's own]
    #[arg(long, value_name = "NAME")]
    drafter: Option<String>,
    /// Only this workload of a trace
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// Deepest draft
    #[arg(long, value_name = "N", default_value_t = 32)]
    max_depth: usize,
    /// Prompts to play; a trace brings its own
    #[arg(long, value_name = "N", default_value_t = 64)]
    prompts: usize,
    /// Rounds of each prompt; a trace brings its own
    #[arg(long, value_name = "N", default_value_t = 500)]
    rounds: usize,
    /// Tokens in the context before the first root; a trace brings its own
    #[arg(long, value_name = "N", default_value_t = 0)]
    context: usize,
    /// Seed of the randomness
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Fit every law to the trace and print how well each holds, instead of playing
    #[arg(long)]
    fit: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    /// Tokens per pass, bonus token included.
    tau: f64,
    tau_ci: Option<Interval>,
    tokens_per_s: f64,
    tokens_per_s_ci: Option<Interval>,
    rounds: f64,
    prompts: usize,
    drafted_per_pass: f64,
    switches: f64,
    plain_tokens_per_s: f64,
    speedup: f64,
    cost: String,
    shape: ShapeKind,
}

/// Plays, or fits.
pub fn run(args: &SimulateArgs) -> Result<ExitCode> {
    let trace = match &args.acceptance {
        AcceptanceSpec::Trace(path) => Some(of_workload(trace_file::read(path)?, args.workload.as_deref())?),
        AcceptanceSpec::Model(_) => None,
    };
    ensure!(
        trace.is_some() || args.workload.is_none(),
        "--workload without a trace changes nothing (give --acceptance trace:FILE)"
    );
    if args.fit {
        let Some(trace) = &trace else { bail!("--fit needs a trace (give --acceptance trace:FILE)") };
        return print_fits(args, &fit_all(trace)?);
    }
    let (name, cost) = args.cost.load()?;
    let drafter = args.drafter.clone().or_else(|| trace.as_ref().map(|t| t.header().drafter.name.clone()));
    let cost = match &drafter {
        Some(drafter) => cost.for_drafter(drafter)?,
        None => cost,
    };
    let policy = match (&args.policy, args.budget) {
        (Some(policy), _) => policy.clone(),
        (None, budget) => Policy::Fixed(budget.map_or_else(|| Budget::new(16), Ok)?),
    };
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let run = Run {
        prompts: args.prompts,
        rounds_per_prompt: args.rounds,
        context: args.context,
        seed: args.seed,
        repetition: 0,
        threads,
    };
    let replay = trace.as_ref().map(|t| Replay::new(t, &args.shape, args.max_depth)).transpose()?;
    let source = match (&args.acceptance, &replay, &trace) {
        (AcceptanceSpec::Model(model), ..) => Source::Model { model, kind: &args.shape, max_depth: args.max_depth },
        (_, Some(replay), Some(trace)) => Source::Trace { replay, steps: trace.header().draft_steps },
        _ => bail!("a trace was named but not read"),
    };
    let (played, plain) = (simulate(source, &cost, &policy, &run)?, simulate(source, &cost, &Policy::Fixed(Budget::OFF), &run)?);
    let report = Report {
        tau: played.tau,
        tau_ci: played.tau_ci,
        tokens_per_s: played.tokens_per_s,
        tokens_per_s_ci: played.tokens_per_s_ci,
        rounds: played.rounds,
        prompts: played.by_prompt.len(),
        drafted_per_pass: played.drafted_per_pass,
        switches: played.switches,
        plain_tokens_per_s: plain.tokens_per_s,
        speedup: played.tokens_per_s / plain.tokens_per_s,
        cost: name,
        shape: args.shape.clone(),
    };
    let mut out = Output::stdout();
    if args.json {
        out.json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let ci = |i: Option<Interval>| i.map_or(String::new(), |i| format!(" (95 %: {:.3} to {:.3})", i.low, i.high));
    out.line(format_args!("{:.3} tokens per pass{}", report.tau, ci(report.tau_ci)))?;
    out.line(format_args!("{:.1} tokens/s{} on {}", report.tokens_per_s, ci(report.tokens_per_s_ci), report.cost))?;
    out.line(format_args!("{:.2} times plain decoding ({:.1} tokens/s)", report.speedup, report.plain_tokens_per_s))?;
    out.line(format_args!("{} rounds of {} prompts, {:.1} drafts each", report.rounds, report.prompts, report.drafted_per_pass))?;
    Ok(ExitCode::SUCCESS)
}

/// The part of a trace that belongs to a workload. Error: no such workload, with those that are there.
pub fn of_workload(trace: Trace, workload: Option<&str>) -> Result<Trace> {
    let Some(wanted) = workload else { return Ok(trace) };
    let known = trace.workloads().into_iter().collect::<Vec<_>>().join(", ");
    ensure!(trace.workloads().contains(wanted), "the trace has no workload {wanted:?}, expected one of {known} (set --workload)");
    Ok(trace.only(|p| p.workload == wanted)?)
}

fn print_fits(args: &SimulateArgs, fits: &[ModelFit]) -> Result<ExitCode> {
    let mut out = Output::stdout();
    if args.json {
        out.json(&fits)?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["law", "parameters", "AIC", "tau counted", "tau of the law", "chi-square", "freedom", "p"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for fit in fits {
        let g = &fit.goodness;
        rows.push(vec![
            format!("{:?}", fit.family),
            fit.parameters.to_string(),
            format!("{:.1}", fit.aic),
            format!("{:.3}", fit.counted_tau),
            format!("{:.3}", fit.model_tau),
            format!("{:.1}", g.chi_square),
            g.freedom.to_string(),
            g.p_value.map_or("-".into(), |p| format!("{p:.3}")),
        ]);
    }
    out.line(table(&rows).join("\n"))?;
    Ok(ExitCode::SUCCESS)
}
