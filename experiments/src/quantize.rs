//! `straw quantize`: writes a smaller copy of a model folder, its drafters included.
//! Works tensor by tensor and row by row, so memory does not grow with the model. The number format is q8's (q8.rs).

use crate::{
    checkpoint::{Checkpoint, Entry},
    output::{self, Output},
    q8,
};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use half::bf16;
use safetensors::Dtype;
use serde::Serialize;
use serde_json::{Map, Value, json};
use specdec::ModelConfig;
use std::{
    fs::{self, File},
    io::{self, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Number formats of `--scheme`.
#[derive(Clone, Copy, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Scheme {
    /// 8-bit symmetric codes, one bf16 scale per 64 inputs
    Q8,
}

/// Arguments of `straw quantize`.
#[derive(Args, Debug)]
#[command(after_help = "Example: straw quantize --model ~/models/Qwen3.5-0.8B --scheme q8 --out ~/models/Qwen3.5-0.8B-q8")]
pub struct QuantizeArgs {
    /// Folder of the model to convert (config.json, safetensors, and dflash/ and weaver/ where present)
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Number format of the copy
    #[arg(long, value_enum)]
    scheme: Scheme,
    /// Folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Overwrite a model that is in the folder already
    #[arg(long)]
    force: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    model: PathBuf,
    out: PathBuf,
    scheme: Scheme,
    parts: Vec<Part>,
    bytes: u64,
}

/// One checkpoint of the folder: the target with its MTP head, or a drafter.
#[derive(Serialize)]
struct Part {
    part: &'static str,
    quantised_tensors: usize,
    kept_tensors: usize,
    left_out_tensors: usize,
    bytes_before: u64,
    bytes: u64,
    /// Root of sum (w - scale * code)^2 / sum w^2 over all quantised weights.
    relative_rms_error: f64,
}

/// Files that a copy needs besides weights and config.json.
const COMPANIONS: [&str; 7] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
];

/// Converts and reports.
pub fn run(args: &QuantizeArgs) -> Result<ExitCode> {
    let from = fs::canonicalize(&args.model).with_context(|| args.model.display().to_string())?;
    let config = fs::read_to_string(from.join("config.json")).with_context(|| from.join("config.json").display().to_string())?;
    ModelConfig::from_json(&config, None).with_context(|| from.display().to_string())?;
    let target = Checkpoint::open(&from)?;
    ensure!(
        target.entries().any(|e| e.name.ends_with("embed_tokens.weight")),
        "{}: has no tensor embed_tokens.weight, so it is not a model that straw knows",
        from.display()
    );
    if let Ok(out) = fs::canonicalize(&args.out) {
        ensure!(out != from, "--out is the model's own folder {}, expected another one", from.display());
        let taken = ["config.json", "model.safetensors"].iter().find(|name| out.join(name).exists());
        if let (Some(name), false) = (taken, args.force) {
            bail!("{} exists already (give --force to overwrite)", args.out.join(name).display());
        }
    }
    let mut parts = vec![convert(&from, &args.out, "target", target)?];
    for part in ["dflash", "weaver"] {
        if from.join(part).join("config.json").is_file() {
            parts.push(convert(&from.join(part), &args.out.join(part), part, Checkpoint::open(&from.join(part))?)?);
        }
    }
    for name in COMPANIONS {
        if from.join(name).is_file() {
            copy(&from.join(name), &args.out.join(name))?;
        }
    }
    let bytes = parts.iter().map(|p| p.bytes).sum();
    let report = Report { model: from, out: args.out.clone(), scheme: args.scheme, parts, bytes };
    let mut out = Output::stdout();
    if args.json {
        out.json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    for p in &report.parts {
        out.line(format_args!(
            "{}: {} tensors quantised, {} kept, {} left out; {} -> {}; relative rms error {:.5}",
            p.part,
            p.quantised_tensors,
            p.kept_tensors,
            p.left_out_tensors,
            output::bytes(p.bytes_before),
            output::bytes(p.bytes),
            p.relative_rms_error
        ))?;
    }
    out.line(format_args!("wrote {} ({})", report.out.display(), output::bytes(report.bytes)))?;
    Ok(ExitCode::SUCCESS)
}

/// What becomes of a tensor.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Quantised,
    Kept,
    LeftOut,
}

/// Linears and the embedding are quantised; the two small gate projections of the delta rule feed an exponential and
/// stay. A vision tower is left out: straw runs text.
fn fate(entry: &Entry) -> Fate {
    let gate = ["in_proj_a.", "in_proj_b."].iter().any(|g| entry.name.contains(g));
    match entry.shape.len() {
        _ if entry.name.starts_with("model.visual.") => Fate::LeftOut,
        2 if entry.name.ends_with(".weight") && !gate => Fate::Quantised,
        _ => Fate::Kept,
    }
}

/// One tensor of the new file.
struct Planned<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    source: &'a Entry,
    begin: u64,
    bytes: u64,
}

fn convert(from: &Path, out: &Path, part: &'static str, source: Checkpoint) -> Result<Part> {
    let config_path = from.join("config.json");
    let text = fs::read_to_string(&config_path).with_context(|| config_path.display().to_string())?;
    let mut config: Map<String, Value> = serde_json::from_str(&text).with_context(|| config_path.display().to_string())?;
    ensure!(!config.contains_key("quantization_config"), "{}: the model is quantised already", config_path.display());
    config.insert(
        "quantization_config".into(),
        json!({"quant_method": "straw", "scheme": "q8", "version": 1, "bits": 8, "group_size": q8::GROUP, "symmetric": true}),
    );
    let mut plan = Vec::new();
    for entry in source.entries().filter(|e| fate(e) != Fate::LeftOut) {
        let mut add = |name: String, dtype: Dtype, shape: Vec<usize>| {
            let bytes = shape.iter().product::<usize>() as u64 * dtype.bitsize() as u64 / 8;
            plan.push(Planned { name, dtype, shape, source: entry, begin: 0, bytes });
        };
        match (fate(entry), &entry.shape[..]) {
            (Fate::Quantised, &[rows, columns]) => {
                add(entry.name.clone(), Dtype::I8, vec![rows, columns]);
                add(format!("{}.scale", entry.name), Dtype::BF16, vec![rows, columns.div_ceil(q8::GROUP)]);
            }
            _ => add(entry.name.clone(), entry.dtype, entry.shape.clone()),
        }
    }
    // Wide types first: every tensor then begins at a multiple of its element.
    plan.sort_by(|a, b| b.dtype.bitsize().cmp(&a.dtype.bitsize()).then(a.name.cmp(&b.name)));
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let weights = Partial::new(out.join("model.safetensors"));
    let relative_rms_error =
        write_weights(&weights.path, &source, &mut plan).with_context(|| format!("writing {}", weights.name.display()))?;
    weights.finish()?;
    write(&out.join("config.json"), format!("{}\n", serde_json::to_string_pretty(&config)?).as_bytes())?;
    let count = |f: Fate| source.entries().filter(|e| fate(e) == f).count();
    Ok(Part {
        part,
        quantised_tensors: count(Fate::Quantised),
        kept_tensors: count(Fate::Kept),
        left_out_tensors: count(Fate::LeftOut),
        bytes_before: source.entries().map(|e| e.bytes).sum(),
        bytes: plan.iter().map(|p| p.bytes).sum(),
        relative_rms_error,
    })
}

/// Returns the relative rms error of the quantised weights.
fn write_weights(path: &Path, source: &Checkpoint, plan: &mut [Planned]) -> Result<f64> {
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut end = 0;
    for tensor in plan.iter_mut() {
        tensor.begin = end;
        end += tensor.bytes;
        let dtype = serde_json::to_value(tensor.dtype)?;
        let entry = json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [tensor.begin, end]});
        header.insert(tensor.name.clone(), entry);
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let data = 8 + header.len() as u64;
    let mut file = File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.set_len(data + end)?;
    let at = |begin: u64| -> io::Result<BufWriter<File>> {
        let mut file = File::options().write(true).open(path)?;
        file.seek(SeekFrom::Start(data + begin))?;
        Ok(BufWriter::new(file))
    };
    let (mut error, mut norm) = (0.0, 0.0);
    for tensor in plan.iter() {
        if fate(tensor.source) == Fate::Kept {
            let mut to = at(tensor.begin)?;
            let copied = io::copy(&mut source.bytes(tensor.source)?, &mut to)?;
            ensure!(copied == tensor.bytes, "{}: ended inside tensor {:?}", source.file(tensor.source).display(), tensor.name);
            to.flush()?;
        } else if tensor.dtype == Dtype::I8 {
            let scale = plan.iter().find(|p| p.dtype == Dtype::BF16 && p.source.name == tensor.name);
            let scale = scale.context("a quantised tensor without scales")?;
            let (mut codes_to, mut scales_to) = (at(tensor.begin)?, at(scale.begin)?);
            let (mut codes, mut scales): (Vec<i8>, Vec<bf16>) = (Vec::new(), Vec::new());
            source.rows(tensor.source, |_, row| {
                codes.clear();
                scales.clear();
                q8::quantise_row(row, &mut codes, &mut scales);
                for (i, (&w, &c)) in row.iter().zip(&codes).enumerate() {
                    error += (f64::from(w) - f64::from(scales[i / q8::GROUP].to_f32()) * f64::from(c)).powi(2);
                    norm += f64::from(w).powi(2);
                }
                codes_to.write_all(&codes.iter().flat_map(|c| c.to_le_bytes()).collect::<Vec<_>>())?;
                scales_to.write_all(&scales.iter().flat_map(|s| s.to_le_bytes()).collect::<Vec<_>>())?;
                Ok(())
            })?;
            codes_to.flush()?;
            scales_to.flush()?;
        }
    }
    Ok(if norm > 0.0 { (error / norm).sqrt() } else { 0.0 })
}

/// A file under a temporary name until it is whole; removed when it never becomes so.
struct Partial {
    path: PathBuf,
    name: PathBuf,
}

impl Partial {
    fn new(name: PathBuf) -> Self {
        let mut path = name.clone().into_os_string();
        path.push(".partial");
        Self { path: path.into(), name }
    }

    fn finish(self) -> Result<()> {
        fs::rename(&self.path, &self.name).with_context(|| self.name.display().to_string())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = Partial::new(path.to_owned());
    fs::write(&partial.path, bytes).with_context(|| partial.path.display().to_string())?;
    partial.finish()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    write(to, &fs::read(from).with_context(|| from.display().to_string())?)
}
