//! `straw logits`: teacher-forced logits of a token sequence and of a tree behind it, into a safetensors file.

use crate::{
    engine::{Engine, EngineArgs, EngineKind},
    model,
    output::Output,
};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use safetensors::{Dtype, tensor::TensorView};
use serde::Serialize;
use specdec::{DraftTree, RequestError};
use std::{fs, path::PathBuf, process::ExitCode};

/// Arguments of `straw logits`.
#[derive(Args, Debug)]
#[command(
    after_help = "Example: straw logits --tokens 1,2,3 --parents=-1,0,0 --tree-tokens 7,8,9 --engine reference --out logits.safetensors"
)]
pub struct LogitsArgs {
    /// Model folder [default: the embedded straw-tiny]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    tokens: Vec<u32>,
    /// Parent of every tree node: the number of an earlier node from 0, or -1 for the last token of --tokens
    #[arg(long, value_name = "NODES", value_delimiter = ',', allow_hyphen_values = true, requires = "tree_tokens")]
    parents: Vec<i64>,
    /// Token id of every tree node
    #[arg(long, value_name = "IDS", value_delimiter = ',', requires = "parents")]
    tree_tokens: Vec<u32>,
    /// File to write: logits [tokens, vocabulary] and, with a tree, tree_logits [nodes, vocabulary], f32
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    engine: EngineKind,
    tokens: usize,
    nodes: usize,
    vocab_size: usize,
}

/// Computes and writes.
pub fn run(args: &LogitsArgs) -> Result<ExitCode> {
    let tree = tree(args)?;
    let dir = model::find(args.model.as_deref())?;
    let engine = Engine::load(&dir, &args.engine)?;
    let vocab_size = engine.config().vocab_size;
    for (name, ids) in [("--tokens", &args.tokens), ("--tree-tokens", &args.tree_tokens)] {
        if let Some(index) = ids.iter().position(|&id| id as usize >= vocab_size) {
            bail!("{name}: token {index} has id {}, expected an id below the vocabulary size {vocab_size}", ids[index]);
        }
    }
    let logits = engine.logits(&args.tokens)?;
    let tree_logits = match &tree {
        // Row 0 is the prompt's last token again.
        Some(tree) => engine.tree_logits(&args.tokens, tree)?.split_off(vocab_size),
        None => Vec::new(),
    };
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (logits, tree_logits) = (bytes(&logits), bytes(&tree_logits));
    let mut tensors = vec![("logits", TensorView::new(Dtype::F32, vec![args.tokens.len(), vocab_size], &logits)?)];
    if tree.is_some() {
        let shape = vec![args.tree_tokens.len(), vocab_size];
        tensors.push(("tree_logits", TensorView::new(Dtype::F32, shape, &tree_logits)?));
    }
    let partial = args.out.with_extension("partial");
    safetensors::serialize_to_file(tensors, None, &partial).with_context(|| partial.display().to_string())?;
    fs::rename(&partial, &args.out).with_context(|| args.out.display().to_string())?;
    let report = Report {
        out: args.out.clone(),
        engine: args.engine.engine,
        tokens: args.tokens.len(),
        nodes: args.tree_tokens.len(),
        vocab_size,
    };
    let mut out = Output::stdout();
    if args.json {
        out.json(&report)?;
    } else {
        let Report { tokens, nodes, vocab_size, .. } = report;
        out.line(format_args!("wrote {}: {tokens} tokens and {nodes} tree nodes of {vocab_size} logits", args.out.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The tree under the last token, nodes in the order given; twins are welcome, nothing is accepted here.
fn tree(args: &LogitsArgs) -> Result<Option<DraftTree>> {
    let Some(&root) = args.tokens.last() else { bail!(RequestError::EmptyPrompt) };
    let (parents, tokens) = (&args.parents, &args.tree_tokens);
    ensure!(
        parents.len() == tokens.len(),
        "--parents has {} nodes and --tree-tokens {}, expected as many of each",
        parents.len(),
        tokens.len()
    );
    let mut drafted = Vec::new();
    for (node, (&parent, &token)) in parents.iter().zip(tokens).enumerate() {
        ensure!(
            (-1..node as i64).contains(&parent),
            "--parents: node {node} has parent {parent}, expected -1 or an earlier node"
        );
        drafted.push(((parent + 1) as usize, token, 0.0));
    }
    if drafted.is_empty() { Ok(None) } else { Ok(Some(DraftTree::teacher_forced(root, &drafted)?)) }
}
