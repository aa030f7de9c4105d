//! `straw inspect`: what a model folder or a safetensors file holds, and what it costs to run.
//! Reads headers and configurations only, so it answers at once whatever the size.

use crate::{
    bytes_per_token::{Scheme, bytes_per_token},
    checkpoint::{Checkpoint, Entry},
    model,
    output::{self, Output},
};
use anyhow::{Context, Result};
use clap::Args;
use safetensors::Dtype;
use serde::Serialize;
use specdec::{Activations, Architecture, CodeFormat, DflashConfig, DrafterKind, LayerKind, QuantScheme, WeaverConfig};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Arguments of `straw inspect`.
#[derive(Args, Debug)]
#[command(after_help = "Example: straw inspect models/straw-tiny --tensors")]
pub struct InspectArgs {
    /// Model folder or safetensors file (default: the embedded model)
    #[arg(value_name = "DIR|FILE")]
    path: Option<PathBuf>,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print one JSON document, tensors included
    #[arg(long)]
    json: bool,
}

/// The document of a folder; a single file has `parts` and `tensors` only.
#[derive(Serialize)]
struct Report {
    path: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<Model>,
    parts: Vec<Part>,
    tensors: Vec<Tensor>,
}

#[derive(Serialize)]
struct Model {
    architecture: Architecture,
    quantisation: QuantScheme,
    vocab_size: usize,
    hidden_size: usize,
    gated_delta_net_layers: usize,
    full_attention_layers: usize,
    context: usize,
    /// Weights that one plain decoding pass reads.
    bytes_read_per_token: u64,
    /// Recurrent state and convolution tails of one sequence, f32, whatever its length.
    state_bytes_per_sequence: usize,
    /// Key/value cache that one token adds, f32 elements.
    kv_bytes_per_token: usize,
    drafters: Vec<DrafterKind>,
}

#[derive(Serialize)]
struct Part {
    part: &'static str,
    tensors: usize,
    parameters: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Tensor {
    part: &'static str,
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
}

/// Reads and prints.
pub fn run(args: &InspectArgs) -> Result<ExitCode> {
    let report = match &args.path {
        Some(file) if file.is_file() => Report::of_file(file)?,
        asked => Report::of_folder(&model::find(asked.as_deref())?)?,
    };
    let mut out = Output::stdout();
    if args.json {
        out.json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    report.print(&mut out)?;
    if args.tensors {
        for t in &report.tensors {
            out.line(format_args!("{:7} {:4} {:16} {}", t.part, t.dtype, format!("{:?}", t.shape), t.name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn of_file(file: &Path) -> Result<Self> {
        let mut report = Self { path: file.to_owned(), model: None, parts: Vec::new(), tensors: Vec::new() };
        report.add("file", Checkpoint::open(file)?.entries());
        Ok(report)
    }

    fn of_folder(dir: &Path) -> Result<Self> {
        let config = model::config(dir)?;
        let target = Checkpoint::open(dir)?;
        let mut report = Self { path: dir.to_owned(), model: None, parts: Vec::new(), tensors: Vec::new() };
        report.add("target", target.entries().filter(|e| kind(e) == Kind::Target));
        report.add("mtp", target.entries().filter(|e| kind(e) == Kind::Mtp));
        report.add("vision", target.entries().filter(|e| kind(e) == Kind::Vision));
        let dflash = drafter_config(dir, "dflash", |text| DflashConfig::from_json(text, &config))?;
        if dflash.is_some() {
            report.add("dflash", Checkpoint::open(&dir.join("dflash"))?.entries());
        }
        let weaver = match &dflash {
            Some(dflash) => drafter_config(dir, "weaver", |text| WeaverConfig::from_json(text, &config, dflash))?,
            None => None,
        };
        if weaver.is_some() {
            report.add("weaver", Checkpoint::open(&dir.join("weaver"))?.entries());
        }
        let mut drafters = vec![DrafterKind::Off, DrafterKind::Ngram];
        drafters.extend((config.mtp_layers > 0).then_some(DrafterKind::Mtp));
        drafters.extend(dflash.is_some().then_some([DrafterKind::Dflash, DrafterKind::DflashTree]).into_iter().flatten());
        drafters.extend(weaver.is_some().then_some(DrafterKind::Weaver));
        report.model = Some(Model {
            architecture: config.architecture,
            quantisation: config.quantisation,
            vocab_size: config.vocab_size,
            hidden_size: config.hidden_size,
            gated_delta_net_layers: config.count(LayerKind::GatedDeltaNet),
            full_attention_layers: config.count(LayerKind::FullAttention),
            context: config.max_positions,
            bytes_read_per_token: bytes_per_token(dir, Scheme::AsStored)?,
            state_bytes_per_sequence: config.fixed_state_bytes(),
            kv_bytes_per_token: config.kv_bytes_per_token(4),
            drafters,
        });
        Ok(report)
    }

    fn add<'a>(&mut self, part: &'static str, entries: impl Iterator<Item = &'a Entry>) {
        let before = self.tensors.len();
        let mut parameters = 0;
        for e in entries {
            // Scales, zero points and signs are parts of weights, not parameters; a byte of 4-bit codes is two.
            let part_of_weight = e.name.ends_with(".weight.scale") || e.name.ends_with(".weight.zero");
            parameters += match e.dtype {
                _ if part_of_weight || e.name.starts_with("hadamard.signs.") => 0,
                Dtype::U8 => 2 * e.elements(),
                _ => e.elements(),
            };
            let (name, dtype) = (e.name.clone(), format!("{:?}", e.dtype));
            self.tensors.push(Tensor { part, name, dtype, shape: e.shape.clone(), bytes: e.bytes });
        }
        let added = &self.tensors[before..];
        if !added.is_empty() {
            self.parts.push(Part { part, tensors: added.len(), parameters, bytes: added.iter().map(|t| t.bytes).sum() });
        }
    }

    fn print(&self, out: &mut Output) -> Result<()> {
        out.line(self.path.display())?;
        if let Some(m) = &self.model {
            out.line(format_args!(
                "architecture     {}: {} gated delta net and {} attention layers, hidden {}, vocabulary {}, context {}",
                serde_json::to_value(m.architecture)?.as_str().unwrap_or_default(),
                m.gated_delta_net_layers,
                m.full_attention_layers,
                m.hidden_size,
                m.vocab_size,
                m.context
            ))?;
            let storage = match m.quantisation {
                QuantScheme::None => "as stored (F32, F16 or BF16)".to_owned(),
                QuantScheme::Q8 { group } => format!("q8, one scale per {group} inputs"),
                QuantScheme::L(format) => format!("L: 8-bit codes, {}", code_format(format)),
                QuantScheme::M(format) => format!("M: 4-bit codes and zero points, {}", code_format(format)),
            };
            out.line(format_args!("weights          {storage}"))?;
            out.line(format_args!("read per token   {}", output::bytes(m.bytes_read_per_token)))?;
            out.line(format_args!(
                "state            {} per sequence, and {} of keys and values per token (f32)",
                output::bytes(m.state_bytes_per_sequence as u64),
                output::bytes(m.kv_bytes_per_token as u64)
            ))?;
            let names: Vec<&str> = m.drafters.iter().map(|d| d.name()).collect();
            out.line(format_args!("drafters         {}", names.join(", ")))?;
        }
        let mut dtypes: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
        for t in &self.tensors {
            *dtypes.entry(t.part).or_default().entry(&t.dtype).or_default() += 1;
        }
        for p in &self.parts {
            let kinds: Vec<String> = dtypes[p.part].iter().map(|(d, n)| format!("{n} {d}")).collect();
            out.line(format_args!(
                "{:16} {:.1} M parameters, {}, {} tensors ({})",
                p.part,
                p.parameters as f64 / 1e6,
                output::bytes(p.bytes),
                p.tensors,
                kinds.join(", ")
            ))?;
        }
        Ok(())
    }
}

fn code_format(format: CodeFormat) -> String {
    let rotated = if format.hadamard { "Hadamard-transformed, " } else { "" };
    let activations = match format.activations {
        Activations::Int8 => "8-bit",
        Activations::F32 => "f32",
    };
    format!("one scale per {} inputs, {rotated}{activations} activations", format.group)
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Target,
    Mtp,
    Vision,
}

fn kind(entry: &Entry) -> Kind {
    match entry.name.as_str() {
        name if name.starts_with("mtp.") => Kind::Mtp,
        name if name.starts_with("model.visual.") => Kind::Vision,
        _ => Kind::Target,
    }
}

fn drafter_config<T>(dir: &Path, part: &str, parse: impl Fn(&str) -> Result<T, specdec::ConfigError>) -> Result<Option<T>> {
    let path = dir.join(part).join("config.json");
    if !path.is_file() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    parse(&text).map(Some).with_context(|| dir.display().to_string())
}
