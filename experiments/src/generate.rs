//! `straw generate`: streams an answer and ends with its statistics.

use crate::{
    answer::{Answer, answer},
    chat::{Chat, Message},
    draft::{BudgetChoice, DraftArgs, DraftPlan},
    engine::{Engine, EngineArgs, EngineKind},
    model,
    output::Output,
    policy_file,
    stats::{EnergyMeter, Statistics},
    stop::StopFilter,
    text::Text,
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use specdec::{Budget, DflashConfig, DrafterKind, FinishReason, GenerateRequest, RequestError, SamplingOptions, SamplingParams};
use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

/// Arguments of `straw generate`.
#[derive(Args, Debug)]
#[command(
    after_help = "Example: straw generate -m \"Write a python function to merge two sorted lists\" --drafter weaver --budget 16"
)]
pub struct GenerateArgs {
    /// The user's message; - reads it from stdin
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    message: String,
    /// Model folder [default: the embedded straw-tiny]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    draft: DraftArgs,
    /// Choose budgets by this file of straw tune; needs --budget auto
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Tokens to generate at most
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Go on after an end token
    #[arg(long)]
    ignore_eos: bool,
    /// The message is the whole prompt: no chat template, and control markers in it are control tokens
    #[arg(long)]
    raw: bool,
    /// Ask the chat template for an answer without reasoning
    #[arg(long, conflicts_with = "raw")]
    no_thinking: bool,
    /// Print one JSON document instead of the stream
    #[arg(long)]
    json: bool,
}

/// How tokens are chosen.
#[derive(Args, Debug)]
pub struct SamplingArgs {
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    temperature: f32,
    /// Keep the K most probable tokens; 0 keeps all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Keep the most probable tokens up to this mass, above 0 and at most 1
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    top_p: f32,
    /// Keep tokens with at least this share of the largest probability, 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,
    /// Divide the logits of tokens seen before; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    repetition_penalty: f32,
    /// Subtract from the logits of tokens of the answer, -2 to 2
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Subtract from those logits once per occurrence, -2 to 2
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// Seed of the randomness
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// The document of `--json`.
#[derive(Serialize)]
struct Report {
    text: String,
    token_ids: Vec<u32>,
    /// Natural logarithms under the target's raw logits.
    logprobs: Vec<f32>,
    finish_reason: FinishReason,
    #[serde(flatten)]
    statistics: Statistics,
    model: PathBuf,
    engine: EngineKind,
    threads: usize,
    drafter: DrafterKind,
    budget: BudgetChoice,
    seed: u64,
    load_s: f64,
    notes: Vec<String>,
}

/// Generates and prints.
pub fn run(args: &GenerateArgs) -> Result<ExitCode> {
    let sampling = args.sampling.params()?;
    let stop = StopFilter::new(&args.stop)?;
    let message = message(&args.message)?;
    let dir = model::find(args.model.as_deref())?;
    let text = Text::load(&dir)?;
    let prompt = prompt(args, &message, &dir, &text)?;
    let clock = Instant::now();
    let engine = Engine::load(&dir, &args.engine)?;
    let load_s = clock.elapsed().as_secs_f64();
    let mut plan = DraftPlan::new(&args.draft, &engine.drafters(), block_depth(&dir, &engine))?;
    if let Some(path) = &args.policy {
        ensure!(plan.budget == BudgetChoice::Auto, "--policy without --budget auto changes nothing (add --budget auto)");
        policy_file::apply(path, &dir, &mut plan)?;
    }
    let request = GenerateRequest {
        prompt,
        max_tokens: args.max_tokens,
        stop_tokens: if args.ignore_eos { Vec::new() } else { engine.config().eos_token_ids.clone() },
        sampling,
        drafter: plan.drafter,
        budget: match plan.budget {
            BudgetChoice::Fixed(budget) => budget,
            BudgetChoice::Auto => Budget::OFF,
        },
    };
    let room = request.check(engine.config())?;
    if room < args.max_tokens {
        plan.notes.push(format!("the context has room for {room} of the {} tokens asked for", args.max_tokens));
    }
    plan.notes.extend(args.sampling.idle());
    let mut out = Output::stdout();
    let mut show = |piece: &str| if args.json { Ok(()) } else { out.piece(piece) };
    let energy = EnergyMeter::start();
    let Answer { generation, text } = answer(&engine, &plan, &request, &text, stop, &mut show)?;
    let statistics = Statistics::new(request.prompt.len(), &generation, energy.joules());
    if plan.drafter != DrafterKind::Off && statistics.drafted == 0 && statistics.passes > 0 {
        plan.notes.push(format!("{} drafted nothing in any round", plan.drafter));
    }
    if args.json {
        out.json(&Report {
            text,
            token_ids: generation.tokens.iter().map(|t| t.id).collect(),
            logprobs: generation.tokens.iter().map(|t| t.log_prob).collect(),
            finish_reason: generation.finish_reason,
            statistics,
            model: dir,
            engine: args.engine.engine,
            threads: engine.threads(),
            drafter: plan.drafter,
            budget: plan.budget,
            seed: args.sampling.seed,
            load_s,
            notes: plan.notes,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    out.line("")?;
    for line in statistics.lines(&plan) {
        eprintln!("{line}");
    }
    for note in &plan.notes {
        eprintln!("note: {note}");
    }
    Ok(ExitCode::SUCCESS)
}

fn message(argument: &str) -> Result<String> {
    let mut message = argument.to_owned();
    if argument == "-" {
        message.clear();
        std::io::stdin().read_to_string(&mut message).context("reading the message from stdin")?;
    }
    ensure!(!message.is_empty(), RequestError::EmptyPrompt);
    Ok(message)
}

fn prompt(args: &GenerateArgs, message: &str, dir: &Path, text: &Text) -> Result<Vec<u32>> {
    if args.raw {
        return text.encode(message);
    }
    let chat = Chat::load(dir)?;
    let mut extra = BTreeMap::new();
    if args.no_thinking {
        ensure!(chat.reads("enable_thinking"), "the chat template knows no enable_thinking, so --no-thinking changes nothing");
        extra.insert("enable_thinking".to_owned(), false);
    }
    chat.encode(&[Message { role: "user".into(), content: message.into() }], &extra, text)
}

/// Tokens along one path of the model's block drafter.
pub fn block_depth(dir: &Path, engine: &Engine) -> Option<usize> {
    let text = fs::read_to_string(dir.join("dflash").join("config.json")).ok()?;
    Some(DflashConfig::from_json(&text, engine.config()).ok()?.max_depth())
}

impl SamplingArgs {
    /// Checked. Error: an option outside its range.
    pub fn params(&self) -> Result<SamplingParams> {
        Ok(SamplingParams::new(SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
        })?)
    }

    /// A note when filters or a seed were given that greedy decoding does not use.
    fn idle(&self) -> Option<String> {
        let given = [
            ("--top-k", self.top_k != 0),
            ("--top-p", self.top_p != 1.0),
            ("--min-p", self.min_p != 0.0),
            ("--seed", self.seed != 0),
        ];
        let names: Vec<&str> = given.iter().filter(|g| g.1 && self.temperature == 0.0).map(|g| g.0).collect();
        (!names.is_empty()).then(|| format!("temperature 0 is greedy: {} changes nothing", names.join(", ")))
    }
}
