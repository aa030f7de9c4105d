//! The two engines behind one door: the same requests, the same answers, one sentence for whatever goes wrong.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use fast::{CostReport, LoadOptions, TraceRoots, TracedRound};
use reference::Reference;
use serde::Serialize;
use specdec::{BudgetTable, DraftTree, DrafterKind, GenerateRequest, Generation, ModelConfig, Token};
use std::{ops::ControlFlow, path::Path};

/// Which engine computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// f64, one line per formula, slow
    Reference,
    /// f32 kernels, all cores
    Fast,
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Reference => "reference",
            Self::Fast => "fast",
        })
    }
}

/// Options of every verb that loads a model into an engine.
#[derive(Args, Debug)]
pub struct EngineArgs {
    /// Engine that computes
    #[arg(long, value_enum, default_value = "fast")]
    pub engine: EngineKind,
    /// Threads of the fast engine; changes no bit of any result [default: all cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// A loaded model.
pub enum Engine {
    /// The oracle.
    Reference(Box<Reference>),
    /// Production.
    Fast(Box<fast::Engine>),
}

impl Engine {
    /// Loads a model folder. Error: 0 threads, threads for the engine that has one, and the engine's own.
    pub fn load(dir: &Path, args: &EngineArgs) -> Result<Self> {
        ensure!(args.threads != Some(0), "the number of threads is 0, expected at least 1 (set --threads)");
        let fast_only = args.engine == EngineKind::Fast || args.threads.is_none();
        ensure!(fast_only, "--threads has no effect on the reference engine, which has one thread (use --engine fast)");
        Ok(match args.engine {
            EngineKind::Reference => Self::Reference(Box::new(Reference::load(dir)?)),
            EngineKind::Fast => {
                let options = LoadOptions { threads: args.threads.unwrap_or(0), ..LoadOptions::default() };
                Self::Fast(Box::new(fast::Engine::load(dir, &options)?))
            }
        })
    }

    /// The target's shape.
    pub fn config(&self) -> &ModelConfig {
        match self {
            Self::Reference(engine) => engine.config(),
            Self::Fast(engine) => engine.config(),
        }
    }

    /// Drafters that the model has.
    pub fn drafters(&self) -> Vec<DrafterKind> {
        match self {
            Self::Reference(engine) => engine.drafters(),
            Self::Fast(engine) => engine.drafters(),
        }
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        match self {
            Self::Reference(_) => 1,
            Self::Fast(engine) => engine.threads(),
        }
    }

    /// Answers a request at its own budget.
    pub fn generate(&self, request: &GenerateRequest, emit: &mut dyn FnMut(Token) -> ControlFlow<()>) -> Result<Generation> {
        Ok(match self {
            Self::Reference(engine) => engine.generate(request, emit)?,
            Self::Fast(engine) => engine.generate(request, emit)?,
        })
    }

    /// Answers a request with a budget chosen for every round. Error: the reference engine does not measure its costs.
    pub fn generate_auto(&self, request: &GenerateRequest, emit: &mut dyn FnMut(Token) -> ControlFlow<()>) -> Result<Generation> {
        Ok(self.fast("--budget auto")?.generate_auto(request, emit)?)
    }

    /// Answers a request with the budgets of a tuned table. Error: the reference engine takes fixed budgets only.
    pub fn generate_by_table(
        &self,
        request: &GenerateRequest,
        table: &BudgetTable,
        emit: &mut dyn FnMut(Token) -> ControlFlow<()>,
    ) -> Result<Generation> {
        Ok(self.fast("--policy")?.generate_by_table(request, table, emit)?)
    }

    /// Answers a request and shows every recorded root. Error: the reference engine does not record.
    pub fn trace(
        &self,
        request: &GenerateRequest,
        roots: TraceRoots,
        each: &mut dyn FnMut(TracedRound) -> ControlFlow<()>,
    ) -> Result<Vec<Token>> {
        Ok(self.fast("straw trace")?.trace(request, roots, each)?)
    }

    /// Seconds of passes and drafts on this machine.
    pub fn measure_cost(&self, repetitions: usize) -> Result<CostReport> {
        Ok(self.fast("measuring costs")?.measure_cost(repetitions)?)
    }

    /// Teacher-forced logits `[tokens, vocab]`.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        Ok(match self {
            Self::Reference(engine) => engine.logits(tokens)?.iter().map(|&x| x as f32).collect(),
            Self::Fast(engine) => engine.logits(tokens)?,
        })
    }

    /// Logits `[rows, vocab]` of a tree whose root is the prompt's last token.
    pub fn tree_logits(&self, prompt: &[u32], tree: &DraftTree) -> Result<Vec<f32>> {
        Ok(match self {
            Self::Reference(engine) => engine.tree_logits(prompt, tree)?.iter().map(|&x| x as f32).collect(),
            Self::Fast(engine) => engine.tree_logits(prompt, tree)?,
        })
    }

    fn fast(&self, what: &str) -> Result<&fast::Engine> {
        match self {
            Self::Fast(engine) => Ok(engine),
            Self::Reference(_) => anyhow::bail!("{what} needs the fast engine (use --engine fast)"),
        }
    }
}
