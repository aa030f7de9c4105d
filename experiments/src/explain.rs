//! `straw explain`: what passes and drafts cost on this machine, how much acceptance pays for them, and one sentence of
//! advice from a trial on a prompt of the user's own.

use crate::{
    chat::{Chat, Message},
    cost_file,
    draft::own_budget,
    engine::{Engine, EngineArgs},
    model,
    output::{self, Output},
    text::Text,
};
use anyhow::{Result, ensure};
use clap::Args;
use fast::CostReport;
use serde::Serialize;
use specdec::{Budget, DrafterKind, GenerateRequest, SamplingParams, tokens_per_pass};
use std::{collections::BTreeMap, ops::ControlFlow, path::PathBuf, process::ExitCode};

/// Arguments of `straw explain`.
#[derive(Args, Debug)]
#[command(after_help = "Example: straw explain -m \"What does the command tar do?\"")]
pub struct ExplainArgs {
    /// Prompt of the trial that the advice rests on
    #[arg(short, long, value_name = "TEXT", default_value = "Write a python function to merge two sorted lists")]
    message: String,
    /// Model folder [default: the embedded straw-tiny]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Interleaved runs behind each median
    #[arg(long, value_name = "N", default_value_t = 7)]
    repetitions: usize,
    /// Tokens of the trial
    #[arg(long, value_name = "N", default_value_t = 96)]
    max_tokens: usize,
    /// Write the costs for straw simulate and straw tune
    #[arg(long, value_name = "FILE")]
    save_cost: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    model: PathBuf,
    cost: CostReport,
    trials: Vec<Trial>,
    advice: String,
}

/// One drafter at its own budget.
#[derive(Serialize)]
struct Trial {
    drafter: DrafterKind,
    budget: Budget,
    /// Seconds of a whole round: draft, verify, commit.
    round_s: f64,
    /// Tokens per pass above which it is faster than plain decoding: the round in plain passes.
    break_even_tokens_per_pass: f64,
    /// Acceptance per position above which a chain of that many drafts pays; absent when none suffices.
    #[serde(skip_serializing_if = "Option::is_none")]
    break_even_acceptance: Option<f64>,
    /// Counted on the prompt; `null` when the answer had no pass.
    tokens_per_pass: Option<f64>,
    /// Tokens per pass over break-even.
    expected_speedup: Option<f64>,
}

/// Measures, tries and advises.
pub fn run(args: &ExplainArgs) -> Result<ExitCode> {
    ensure!(args.repetitions > 0, "the number of repetitions is 0, expected at least 1 (set --repetitions)");
    let dir = model::find(args.model.as_deref())?;
    let text = Text::load(&dir)?;
    let message = Message { role: "user".into(), content: args.message.clone() };
    let prompt = Chat::load(&dir)?.encode(&[message], &BTreeMap::new(), &text)?;
    let engine = Engine::load(&dir, &args.engine)?;
    let cost = engine.measure_cost(args.repetitions)?;
    if let Some(path) = &args.save_cost {
        cost_file::save(path, &dir, &cost)?;
    }
    let mut trials = Vec::new();
    for drafter in engine.drafters().into_iter().filter(|&d| d != DrafterKind::Off) {
        trials.push(trial(&engine, &cost, drafter, &prompt, args.max_tokens)?);
    }
    let advice = advice(&trials);
    let report = Report { model: dir, cost, trials, advice };
    let mut out = Output::stdout();
    if args.json {
        out.json(&report)?
    } else {
        report.print(&mut out)?
    }
    Ok(ExitCode::SUCCESS)
}

fn trial(engine: &Engine, cost: &CostReport, drafter: DrafterKind, prompt: &[u32], max_tokens: usize) -> Result<Trial> {
    let budget = Budget::new(own_budget(drafter))?;
    let request = GenerateRequest {
        prompt: prompt.to_vec(),
        max_tokens,
        stop_tokens: engine.config().eos_token_ids.clone(),
        sampling: SamplingParams::greedy(),
        drafter,
        budget,
    };
    request.check(engine.config())?;
    let generation = engine.generate(&request, &mut |_| ControlFlow::Continue(()))?;
    let round_s = round_s(cost, drafter, budget);
    let break_even = round_s / cost.plain_s;
    let counted = tokens_per_pass(&generation.rounds);
    Ok(Trial {
        drafter,
        budget,
        round_s,
        break_even_tokens_per_pass: break_even,
        break_even_acceptance: break_even_acceptance(break_even, budget.nodes()),
        tokens_per_pass: counted,
        expected_speedup: counted.map(|tau| tau / break_even),
    })
}

/// Draft, verification of all rows, commit; the draft is linear between the budgets that were timed.
fn round_s(cost: &CostReport, drafter: DrafterKind, budget: Budget) -> f64 {
    let points = cost.drafts.iter().find(|d| d.drafter == drafter).map_or(&[][..], |d| &d.by_budget);
    let n = budget.nodes();
    let below = points.iter().rev().find(|p| p.0 <= n).or(points.first());
    let above = points.iter().find(|p| p.0 >= n).or(points.last());
    let draft = match (below, above) {
        (Some(a), Some(b)) if b.0 > a.0 => a.1 + (b.1 - a.1) * (n - a.0) as f64 / (b.0 - a.0) as f64,
        (Some(a), _) => a.1,
        _ => 0.0,
    };
    draft + cost.verify_s[n] + cost.commit_s
}

/// The acceptance a at which a chain of n drafts yields `tau` tokens: 1 + a + ... + a^n = tau (Leviathan et al., eq. 1).
fn break_even_acceptance(tau: f64, n: usize) -> Option<f64> {
    let tokens = |a: f64| (0..=n as i32).map(|i| a.powi(i)).sum::<f64>();
    if tau >= tokens(1.0) {
        return None;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if tokens(middle) < tau { low = middle } else { high = middle }
    }
    Some(high)
}

/// Within 3 % of plain decoding is no gain: it is the noise of such a measurement.
const NOISE: f64 = 1.03;

fn advice(trials: &[Trial]) -> String {
    let tried = trials.iter().filter_map(|t| Some((t, t.expected_speedup?)));
    match tried.max_by(|a, b| a.1.total_cmp(&b.1)) {
        None => {
            "the trial ended with its first token, so it says nothing about drafting: give a prompt with a longer answer".into()
        }
        Some((t, gain)) if gain > NOISE => format!(
            "use --drafter {} --budget {}: {:.2} tokens per pass at {:.2} plain passes a round make it about {gain:.2} times as fast as plain decoding on this prompt",
            t.drafter,
            t.budget,
            t.tokens_per_pass.unwrap_or_default(),
            t.break_even_tokens_per_pass
        ),
        Some((t, gain)) => format!(
            "use --drafter off: the best drafter here, {}, would make it {gain:.2} times as fast as plain decoding on this prompt",
            t.drafter
        ),
    }
}

impl Report {
    fn print(&self, out: &mut Output) -> Result<()> {
        let (cost, ms) = (&self.cost, |s: f64| format!("{:.2}", s * 1e3));
        out.line(format_args!(
            "{}: {} threads, context {}, medians of {} interleaved runs",
            self.model.display(),
            cost.threads,
            cost.context,
            cost.repetitions
        ))?;
        out.line(format_args!("plain pass {} ms, commit {} ms", ms(cost.plain_s), ms(cost.commit_s)))?;
        out.line("\nverification by rows (root and drafts), in ms and in plain passes:")?;
        for (i, chunk) in cost.verify_s.chunks(8).enumerate() {
            let cell = |(j, &s): (usize, &f64)| format!("{:>2}: {:>6} ({:.2})", 8 * i + j + 1, ms(s), s / cost.plain_s);
            out.line(chunk.iter().enumerate().map(cell).collect::<Vec<_>>().join("  "))?;
        }
        let header =
            ["drafter", "budget", "round ms", "pays above tokens/pass", "or chain acceptance", "tokens/pass here", "speed"];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        for t in &self.trials {
            let number = |x: Option<f64>| x.map_or("-".into(), |x| format!("{x:.2}"));
            rows.push(vec![
                t.drafter.to_string(),
                t.budget.to_string(),
                ms(t.round_s),
                number(Some(t.break_even_tokens_per_pass)),
                number(t.break_even_acceptance),
                number(t.tokens_per_pass),
                number(t.expected_speedup),
            ]);
        }
        out.line(format_args!("\n{}\n\n{}", output::table(&rows).join("\n"), self.advice))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn break_even_acceptance_inverts_the_chain_formula() {
        for (a, n) in [(0.3, 3), (0.8, 8), (0.95, 16)] {
            let tau = (0..=n as i32).map(|i| f64::powi(a, i)).sum::<f64>();
            assert!((break_even_acceptance(tau, n).unwrap() - a).abs() < 1e-12);
        }
        assert_eq!(break_even_acceptance(4.0, 3), None);
        assert_eq!(break_even_acceptance(1.0, 3).map(|a| a < 1e-12), Some(true));
    }

    #[test]
    fn advice_is_the_fastest_or_off() {
        let trial = |drafter, tau: f64, cost: f64| Trial {
            drafter,
            budget: Budget::new(8).unwrap(),
            round_s: cost,
            break_even_tokens_per_pass: cost,
            break_even_acceptance: None,
            tokens_per_pass: Some(tau),
            expected_speedup: Some(tau / cost),
        };
        let good = [trial(DrafterKind::Mtp, 2.0, 1.5), trial(DrafterKind::Weaver, 4.0, 2.0)];
        assert!(advice(&good).starts_with("use --drafter weaver --budget 8: 4.00 tokens per pass at 2.00"), "{}", advice(&good));
        assert!(advice(&[trial(DrafterKind::Ngram, 1.0, 1.2)]).starts_with("use --drafter off"));
        assert!(advice(&[]).starts_with("the trial ended"));
    }
}
