//! `straw tour`, and what `straw` does without a verb: one prompt decoded plainly and with drafts, both shown to be the
//! same bits, and one round's tree.

use crate::{
    answer::{Answer, answer},
    chat::{Chat, Message},
    draft::{BudgetChoice, DraftArgs, DraftPlan},
    engine::{Engine, EngineArgs, EngineKind},
    generate::block_depth,
    model,
    output::{Output, table, yes},
    stats::Statistics,
    stop::StopFilter,
    text::Text,
    tree_view,
};
use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use specdec::{Budget, DrafterKind, GenerateRequest, RoundRecord, SamplingOptions, SamplingParams};
use std::{collections::BTreeMap, io, path::PathBuf, process::ExitCode};

/// The prompt of the article that straw implements.
const PROMPT: &str = "Write a python function to merge two sorted lists";
const MAX_TOKENS: usize = 160;
/// The sampled pair: a temperature at which neighbours are often chosen.
const TEMPERATURE: f32 = 0.8;
const SEED: u64 = 7;

/// Arguments of `straw tour`.
#[derive(Args, Debug)]
#[command(after_help = "Example: straw tour --drafter mtp --budget 3")]
pub struct TourArgs {
    /// Model folder [default: the embedded straw-tiny]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    draft: DraftArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Default for TourArgs {
    fn default() -> Self {
        let engine = EngineArgs { engine: EngineKind::Fast, threads: None };
        Self { model: None, engine, draft: DraftArgs::default(), json: false }
    }
}

#[derive(Serialize)]
struct Report {
    prompt: &'static str,
    text: String,
    drafter: DrafterKind,
    budget: BudgetChoice,
    greedy: Pair,
    sampled: Pair,
    /// The round that accepted most.
    round: Option<RoundRecord>,
}

/// The same request without and with drafts.
#[derive(Serialize)]
struct Pair {
    temperature: f32,
    seed: u64,
    plain: Statistics,
    speculative: Statistics,
    /// Tokens and log-probabilities are the same bits.
    identical: bool,
}

/// Runs the tour; exit code 1 if drafting changed the answer.
pub fn run(args: &TourArgs) -> Result<ExitCode> {
    let dir = model::find(args.model.as_deref())?;
    let (text, chat) = (Text::load(&dir)?, Chat::load(&dir)?);
    let engine = Engine::load(&dir, &args.engine)?;
    let plan = DraftPlan::new(&args.draft, &engine.drafters(), block_depth(&dir, &engine))?;
    ensure!(plan.drafter != DrafterKind::Off, "the tour compares plain decoding with drafts, and nothing drafts (set --drafter)");
    let message = Message { role: "user".into(), content: PROMPT.into() };
    let prompt = chat.encode(&[message], &BTreeMap::new(), &text)?;
    let mut out = Output::stdout();
    let tour = Tour { engine: &engine, plan: &plan, text: &text, prompt };
    if !args.json {
        out.line(format_args!("straw on {}: {} threads, the {} engine", dir.display(), engine.threads(), args.engine.engine))?;
        out.line(format_args!("\n> {PROMPT}\n"))?;
    }
    let mut show = |piece: &str| if args.json { Ok(()) } else { out.piece(piece) };
    let (greedy, answer) = tour.pair(0.0, 0, &mut show)?;
    let (sampled, _) = tour.pair(TEMPERATURE, SEED, &mut |_| Ok(()))?;
    let identical = greedy.identical && sampled.identical;
    let round = answer.generation.rounds.iter().rev().max_by_key(|r| r.acceptance.accepted()).cloned();
    if args.json {
        let Answer { text, .. } = answer;
        let (drafter, budget) = (plan.drafter, plan.budget);
        out.json(&Report { prompt: PROMPT, text, drafter, budget, greedy, sampled, round })?;
    } else {
        out.line("\n")?;
        print(&mut out, &plan, &greedy, &sampled)?;
        if let Some(round) = &round {
            out.line(format_args!(
                "\nThe round that accepted most, {} of {} drafts (● accepted, · refused, draft probability behind):",
                round.acceptance.accepted(),
                round.tree.drafted()
            ))?;
            for line in tree_view::lines(round, &|id| text.name(id)) {
                out.line(format_args!("  {line}"))?;
            }
        }
        out.line("\nNext: straw generate -m TEXT, straw explain, straw verify law; straw --help lists all.")?;
    }
    for note in &plan.notes {
        eprintln!("note: {note}");
    }
    if !identical {
        eprintln!("straw: drafting changed the answer, which it must never do (run the tests, and report this)");
    }
    Ok(if identical { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Tour<'a> {
    engine: &'a Engine,
    plan: &'a DraftPlan,
    text: &'a Text,
    prompt: Vec<u32>,
}

impl Tour<'_> {
    /// Both runs, and the speculative answer, which is the one that is shown.
    fn pair(&self, temperature: f32, seed: u64, show: &mut dyn FnMut(&str) -> io::Result<()>) -> Result<(Pair, Answer)> {
        let off =
            DraftPlan { drafter: DrafterKind::Off, budget: BudgetChoice::Fixed(Budget::OFF), table: None, notes: Vec::new() };
        let drafted = self.once(self.plan, temperature, seed, show)?;
        let plain = self.once(&off, temperature, seed, &mut |_| Ok(()))?;
        let bits = |a: &Answer| a.generation.tokens.iter().map(|t| (t.id, t.log_prob.to_bits())).collect::<Vec<_>>();
        let statistics = |a: &Answer| Statistics::new(self.prompt.len(), &a.generation, None);
        let pair = Pair {
            temperature,
            seed,
            identical: bits(&plain) == bits(&drafted) && plain.text == drafted.text,
            plain: statistics(&plain),
            speculative: statistics(&drafted),
        };
        Ok((pair, drafted))
    }

    fn once(
        &self,
        plan: &DraftPlan,
        temperature: f32,
        seed: u64,
        show: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<Answer> {
        let request = GenerateRequest {
            prompt: self.prompt.clone(),
            max_tokens: MAX_TOKENS,
            stop_tokens: self.engine.config().eos_token_ids.clone(),
            sampling: SamplingParams::new(SamplingOptions { temperature, seed, ..SamplingOptions::default() })?,
            drafter: plan.drafter,
            budget: match plan.budget {
                BudgetChoice::Fixed(budget) => budget,
                BudgetChoice::Auto => Budget::OFF,
            },
        };
        answer(self.engine, plan, &request, self.text, StopFilter::new(&[])?, show)
    }
}

fn print(out: &mut Output, plan: &DraftPlan, greedy: &Pair, sampled: &Pair) -> io::Result<()> {
    let mut rows = vec![["", "tokens", "passes", "tokens/pass", "tokens/s", "same bits"].map(str::to_owned).to_vec()];
    for pair in [greedy, sampled] {
        let how = if pair.temperature == 0.0 { "greedy".into() } else { format!("T {} seed {}", pair.temperature, pair.seed) };
        let drafted = format!("{} {}", plan.drafter, plan.budget);
        for (who, s, same) in [("plain", &pair.plain, ""), (&drafted, &pair.speculative, yes(pair.identical))] {
            let number = |x: Option<f64>, digits: usize| x.map_or("-".into(), |x| format!("{x:.digits$}"));
            rows.push(vec![
                format!("{how}, {who}"),
                s.completion_tokens.to_string(),
                s.passes.to_string(),
                number(s.tokens_per_forward_pass, 2),
                number(s.generation_tokens_per_s, 0),
                same.into(),
            ]);
        }
    }
    out.line(table(&rows).join("\n"))
}
