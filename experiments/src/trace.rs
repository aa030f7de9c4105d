//! `straw trace`: records what a drafter proposed and what the target thought of every node, independent of any machine's
//! speed. The simulator turns the record into tokens per pass and tokens per second of every budget.

use crate::{
    chat::{Chat, Message},
    digest,
    draft::own_steps,
    engine::{Engine, EngineArgs},
    generate::SamplingArgs,
    model,
    output::Output,
    prompts::{self, Prompt},
    text::Text,
    trace_file::{Recording, Start},
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use fast::{TraceRoots, TracedRound};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sim::{Identity, Roots, SCHEMA, TraceHeader, TraceNode, TracePrompt, TraceRound, TreeNoise, VERSION};
use specdec::{Budget, DrafterKind, GenerateRequest};
use std::{collections::BTreeMap, num::NonZeroUsize, ops::ControlFlow, path::PathBuf, process::ExitCode, str::FromStr};

/// Arguments of `straw trace`.
#[derive(Args, Debug)]
#[command(after_help = "Example: straw trace --prompts prompts.jsonl --drafter weaver --max-tokens 48 --out weaver.jsonl.zst
A second start with the same arguments goes on where the first was stopped.")]
pub struct TraceArgs {
    /// Prompt set: JSON lines with id, workload and prompt
    #[arg(long, value_name = "FILE")]
    prompts: PathBuf,
    /// Only prompts of this workload; may be given several times
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// Who drafts: ngram, mtp, dflash, dflash-tree or weaver
    #[arg(long, value_name = "NAME")]
    drafter: DrafterKind,
    /// Nodes of every tree: 3 to 32. Smaller budgets are read off the record, so record the largest
    #[arg(long, value_name = "N", default_value_t = Budget::MAX)]
    budget: usize,
    /// Where trees are recorded: dense (every position; exact for every budget), visited (where this budget's rounds begin;
    /// cheapest, biased for others) or every:K
    #[arg(long, value_name = "WHERE", default_value = "dense")]
    roots: RootsArg,
    /// Tokens of every answer at most
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// File to write; .zst at the end of the name compresses it
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Model folder [default: the embedded straw-tiny]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug)]
struct RootsArg(Roots);

impl FromStr for RootsArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let step = text.strip_prefix("every:").and_then(|k| k.parse::<NonZeroUsize>().ok());
        match (text, step) {
            ("dense", _) => Ok(Self(Roots::Dense)),
            ("visited", _) => Ok(Self(Roots::Visited)),
            (_, Some(step)) if step.get() == 1 => Ok(Self(Roots::Dense)),
            (_, Some(step)) => Ok(Self(Roots::Every(step))),
            _ => Err(format!("{text:?} names no roots, expected dense, visited or every:K with K above 0")),
        }
    }
}

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    prompts: usize,
    /// Prompts that an earlier start had finished.
    resumed: usize,
    rounds: usize,
    tokens: usize,
}

/// Records.
pub fn run(args: &TraceArgs) -> Result<ExitCode> {
    let budget = Budget::new(args.budget)?;
    ensure!(
        !budget.is_off() && args.drafter != DrafterKind::Off,
        "a trace without drafts says nothing (set --drafter and --budget)"
    );
    let sampling = args.sampling.params()?;
    let prompts = prompts::read(&args.prompts, &args.workload)?;
    let dir = model::find(args.model.as_deref())?;
    let (text, chat) = (Text::load(&dir)?, Chat::load(&dir)?);
    let engine = Engine::load(&dir, &args.engine)?;
    let name = |p: &std::path::Path| p.file_name().map_or("model".into(), |n| n.to_string_lossy().into_owned());
    let header = TraceHeader {
        schema: SCHEMA.into(),
        version: VERSION,
        model: Identity { name: name(&dir), hash: digest::model(&dir)? },
        drafter: Identity { name: args.drafter.name().into(), hash: digest::drafter(&dir, args.drafter)? },
        sampling,
        tree_noise: if sampling.is_greedy() { TreeNoise::Independent } else { TreeNoise::Shared },
        roots: args.roots.0,
        budget: Some(budget),
        max_tokens: Some(args.max_tokens),
        draft_steps: own_steps(args.drafter),
        prompts: prompts.iter().map(|p| TracePrompt { id: p.id.clone(), workload: p.workload.clone() }).collect(),
    };
    let mut report = Report { out: args.out.clone(), prompts: prompts.len(), resumed: 0, rounds: 0, tokens: 0 };
    match Recording::start(&args.out, &header)? {
        Start::Complete => report.resumed = prompts.len(),
        Start::From(mut recording, next) => {
            report.resumed = next;
            let bar = bar(prompts.len(), next);
            for prompt in &prompts[next..] {
                let request = GenerateRequest {
                    prompt: encode(prompt, &chat, &text)?,
                    max_tokens: args.max_tokens,
                    stop_tokens: engine.config().eos_token_ids.clone(),
                    sampling,
                    drafter: args.drafter,
                    budget,
                };
                let mut rounds = Vec::new();
                let mut keep = |round: TracedRound| {
                    rounds.push(line(&prompt.id, round));
                    ControlFlow::Continue(())
                };
                let tokens =
                    engine.trace(&request, roots(args.roots.0), &mut keep).with_context(|| format!("prompt {}", prompt.id))?;
                report.rounds += rounds.len();
                report.tokens += tokens.len();
                recording.prompt(&rounds)?;
                bar.inc(1);
            }
            bar.finish_and_clear();
            recording.finish()?;
        }
    }
    let mut out = Output::stdout();
    if args.json {
        out.json(&report)?;
    } else {
        out.line(format_args!(
            "{}: {} prompts ({} recorded before), {} rounds and {} tokens recorded now",
            report.out.display(),
            report.prompts,
            report.resumed,
            report.rounds,
            report.tokens
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn encode(prompt: &Prompt, chat: &Chat, text: &Text) -> Result<Vec<u32>> {
    chat.encode(&[Message { role: "user".into(), content: prompt.prompt.clone() }], &BTreeMap::new(), text)
}

fn roots(roots: Roots) -> TraceRoots {
    match roots {
        Roots::Visited => TraceRoots::Visited,
        Roots::Dense => TraceRoots::Every(NonZeroUsize::MIN),
        Roots::Every(step) => TraceRoots::Every(step),
    }
}

/// A recorded root as a line of the file.
fn line(prompt: &str, round: TracedRound) -> TraceRound {
    let tree = &round.tree;
    let node = |row: usize| {
        let parent = tree.parents()[row].unwrap_or(0);
        let edge = round.edges[row - 1];
        TraceNode {
            parent,
            depth: tree.depths()[row],
            // Siblings are listed best first.
            rank: tree.children(parent).take_while(|&c| c < row).count(),
            draft_log_prob: shortest(tree.log_probs()[row]),
            target_log_prob: edge.log_prob.map(shortest),
            target_rank: edge.rank,
        }
    };
    TraceRound {
        prompt: prompt.into(),
        position: round.position,
        // The root itself is not in the cache yet.
        context: round.position,
        nodes: (1..tree.rows()).map(node).collect(),
        accepted: round.acceptance.path,
    }
}

/// The shortest decimal that reads back as the same f32: half the digits of its f64.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::from(x))
}

fn bar(prompts: usize, done: usize) -> ProgressBar {
    // Hidden by indicatif itself when stderr is not a terminal.
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} prompts, {eta} left").expect("the template is valid");
    ProgressBar::new(prompts as u64).with_style(style).with_position(done as u64)
}
