//! `straw quantize`: writes a smaller copy of a model folder, in the formats of docs/formats.md.
//! Works tensor by tensor and rows at a time, so memory does not grow with the model; an interrupted run continues.

mod acceptance;
mod codes;
mod convert;
mod feedback;
mod partial;
mod plan;
mod report;
mod settings;
mod transform;

use crate::{checkpoint::Checkpoint, corpus, output::Output};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use convert::Conversion;
use indicatif::{ProgressBar, ProgressStyle};
use partial::Partial;
use plan::Plan;
use reference::GramWalk;
use report::{Part, Report};
use serde_json::{Map, Value};
use settings::{Activations, Rounding, Scheme, Settings};
use specdec::ModelConfig;
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Arguments of `straw quantize`.
#[derive(Args, Debug)]
#[command(after_help = "Example: straw quantize --model ~/models/Qwen3.5-0.8B --scheme m --calibrate text.jsonl --drafters")]
pub struct QuantizeArgs {
    /// Folder of the model to convert (config.json, safetensors, and dflash/ and weaver/ where present)
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Number format of the copy
    #[arg(long, value_enum)]
    scheme: Scheme,
    /// Folder to write [default: the model's folder with the scheme's name, DIR-m]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Quantise the drafters too (the MTP head, DFlash, Weaver), and measure what that does to acceptance
    #[arg(long)]
    drafters: bool,
    /// Leave acceptance unmeasured: measuring loads both models into memory
    #[arg(long, requires = "drafters")]
    no_acceptance: bool,
    /// Text to calibrate on: plain, or JSON lines of {text} or {prompt, answer}
    #[arg(long, value_name = "FILE")]
    calibrate: Option<PathBuf>,
    /// Tokens to calibrate on, taken evenly from the text
    #[arg(long, value_name = "N", default_value_t = 8192, requires = "calibrate")]
    calibration_tokens: usize,
    /// How codes are chosen [default: feedback with --calibrate, nearest without]
    #[arg(long, value_enum)]
    rounding: Option<Rounding>,
    /// Block of the Hadamard transform of the inputs, 32, or 0 for none [default: 32; q8: 0]
    #[arg(long, value_name = "N")]
    hadamard: Option<usize>,
    /// Inputs that share a scale: 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = 64)]
    group: usize,
    /// Numbers that linears take when the copy runs [default: int8; q8: f32]
    #[arg(long, value_enum)]
    activations: Option<Activations>,
    /// In scheme m, tensors whose name contains one of these have 8 bits ("none" for none) [default: embed_tokens,lm_head]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    eight_bit: Option<Vec<String>>,
    /// Overwrite a model that is in the folder already
    #[arg(long)]
    force: bool,
    /// Print every tensor's error
    #[arg(long)]
    tensors: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
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
/// Tokens of a calibration text that are run together.
const CALIBRATION_WINDOW: usize = 512;

/// Threads that choose codes. Changes no byte of the result.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Converts and reports.
pub fn run(args: &QuantizeArgs) -> Result<ExitCode> {
    let settings = settings(args)?;
    let from = fs::canonicalize(&args.model).with_context(|| args.model.display().to_string())?;
    let config = fs::read_to_string(from.join("config.json")).with_context(|| from.join("config.json").display().to_string())?;
    ModelConfig::from_json(&config, None).with_context(|| from.display().to_string())?;
    let target = Checkpoint::open(&from)?;
    ensure!(
        target.entries().any(|e| e.name.ends_with("embed_tokens.weight")),
        "{}: has no tensor embed_tokens.weight, so it is not a model that straw knows",
        from.display()
    );
    for part in ["", "dflash", "weaver"].map(|part| from.join(part)).iter().filter(|part| part.join("config.json").is_file()) {
        config_of(part)?;
    }
    let calibration = args.calibrate.as_deref().map(|file| calibration(file, &from, args.calibration_tokens)).transpose()?;
    // After everything that can refuse: with --force it ends the model that is there.
    let out = out_folder(args, &from)?;
    let (part, config) = convert(&from, &out, "target", &target, Some(&settings), calibration.as_deref())?;
    let mut parts = vec![part];
    for part in ["dflash", "weaver"] {
        let folder = from.join(part);
        if folder.join("config.json").is_file() {
            let (source, to) = (Checkpoint::open(&folder)?, out.join(part));
            let (part, config) = convert(&folder, &to, part, &source, settings.drafters.then_some(&settings), None)?;
            partial::write(&to.join("config.json"), config.as_bytes())?;
            parts.push(part);
        }
    }
    for name in COMPANIONS {
        if from.join(name).is_file() {
            let bytes = fs::read(from.join(name)).with_context(|| from.join(name).display().to_string())?;
            partial::write(&out.join(name), &bytes)?;
        }
    }
    // Last, because with it the folder becomes a model.
    partial::write(&out.join("config.json"), config.as_bytes())?;
    for part in ["", "dflash", "weaver"] {
        partial::forget(&out.join(part).join("model.safetensors"))?;
    }
    let acceptance = match settings.drafters && !args.no_acceptance {
        true => acceptance::measure(&from, &out)?,
        false => Vec::new(),
    };
    let tokens = calibration.map_or(0, |texts| texts.iter().map(Vec::len).sum());
    let report = Report { model: from, out, settings, calibration_tokens: tokens, parts, acceptance };
    let mut out = Output::stdout();
    if args.json {
        out.json(&report)?
    } else {
        report.print(&mut out, args.tensors)?
    }
    Ok(ExitCode::SUCCESS)
}

fn settings(args: &QuantizeArgs) -> Result<Settings> {
    let q8 = args.scheme == Scheme::Q8;
    let refused = q8 && (args.hadamard.is_some() || args.activations.is_some());
    ensure!(!refused, "scheme q8 has no Hadamard transform and f32 activations (use --scheme l)");
    let rounding = args.rounding.unwrap_or(if args.calibrate.is_some() { Rounding::Feedback } else { Rounding::Nearest });
    match (rounding, &args.calibrate) {
        (Rounding::Feedback, None) => bail!("rounding with feedback needs a text to calibrate on (set --calibrate)"),
        (Rounding::Nearest, Some(_)) => bail!("--calibrate has no effect on nearest rounding (leave it out)"),
        _ => {}
    }
    let eight = match &args.eight_bit {
        Some(names) if names.iter().any(|n| n == "none") => Vec::new(),
        Some(names) => names.clone(),
        None if args.scheme == Scheme::M => ["embed_tokens", "lm_head"].map(str::to_owned).to_vec(),
        None => Vec::new(),
    };
    let settings = Settings {
        scheme: args.scheme,
        hadamard: args.hadamard.unwrap_or(if q8 { 0 } else { specdec::hadamard::BLOCK }),
        group: args.group,
        activations: args.activations.unwrap_or(if q8 { Activations::F32 } else { Activations::Int8 }),
        rounding,
        eight,
        drafters: args.drafters,
    };
    settings.check()?;
    Ok(settings)
}

/// The folder to write, empty, free to be overwritten, or with an unfinished run in it.
fn out_folder(args: &QuantizeArgs, from: &Path) -> Result<PathBuf> {
    let out = match &args.out {
        Some(out) => out.clone(),
        None => {
            let name = from.file_name().map_or("model".into(), |name| name.to_string_lossy());
            let scheme = serde_json::to_value(args.scheme)?;
            from.with_file_name(format!("{name}-{}", scheme.as_str().unwrap_or("q")))
        }
    };
    let Ok(found) = fs::canonicalize(&out) else { return Ok(out) };
    ensure!(found != from, "--out is the model's own folder {}, expected another one", from.display());
    let unfinished = !out.join("config.json").exists() && out.join("model.safetensors.journal").exists();
    let taken = ["config.json", "model.safetensors"].iter().find(|name| out.join(name).exists());
    match taken {
        Some(_) if unfinished => {}
        Some(name) if !args.force => bail!("{} exists already (give --force to overwrite)", out.join(name).display()),
        // From here to the end the folder is no model.
        Some(_) => {
            let config = out.join("config.json");
            if config.exists() {
                fs::remove_file(&config).with_context(|| config.display().to_string())?;
            }
        }
        None => {}
    }
    Ok(out)
}

/// Windows taken evenly from all the text.
fn calibration(file: &Path, model: &Path, tokens: usize) -> Result<Vec<Vec<u32>>> {
    let samples = corpus::read(file, model, CALIBRATION_WINDOW)?;
    let total: usize = samples.iter().map(|s| s.tokens.len()).sum();
    let (mut taken, mut seen, mut texts) = (0, 0, Vec::new());
    for sample in samples {
        seen += sample.tokens.len();
        // What an even pace would have taken by now.
        if taken < tokens.min(total) * seen / total {
            taken += sample.tokens.len();
            texts.push(sample.tokens);
        }
    }
    Ok(texts)
}

/// Writes the weights of one checkpoint folder and returns its new config.json. Without settings weights are copied as they are.
fn convert(
    from: &Path,
    out: &Path,
    part: &'static str,
    source: &Checkpoint,
    settings: Option<&Settings>,
    calibration: Option<&[Vec<u32>]>,
) -> Result<(Part, String)> {
    let mut config = config_of(from)?;
    if let Some(settings) = settings {
        config.insert("quantization_config".into(), settings.config());
    }
    let plan = Plan::new(source, settings)?;
    let new_folder = !out.exists();
    fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let request = request(source, settings, calibration, &plan)?;
    let mut file = Partial::open(out.join("model.safetensors"), &request, &plan.header, plan.size)?;
    let bar = ProgressBar::new(source.entries().map(|e| e.bytes).sum());
    bar.set_style(ProgressStyle::with_template("{prefix:8} {wide_bar} {bytes} of {total_bytes}, {eta} left")?);
    bar.set_prefix(part);
    if file.count() > 0 {
        bar.println(format!("{part}: continuing, {} of {} tensors are finished", file.count(), plan.jobs.len()));
    }
    let walk = calibration.map(|texts| GramWalk::open(from, texts)).transpose()?;
    let converted = Conversion { source, plan: &plan, settings, file: &mut file, bar: &bar }.run(walk);
    bar.finish_and_clear();
    if let Err(error) = converted.and_then(|()| file.name_it()) {
        // A full disk can be made room on and the run continued; a model that cannot be converted cannot.
        if !error.chain().any(|e| e.is::<std::io::Error>()) {
            file.abandon();
        }
        if new_folder {
            // Only an empty folder goes.
            let _ = fs::remove_dir(out);
        }
        return Err(error.context(format!("writing {}", out.join("model.safetensors").display())));
    }
    let config = format!("{}\n", serde_json::to_string_pretty(&config)?);
    Ok((Part::new(part, source, &plan, &file), config))
}

/// A checkpoint's configuration. Errors: none, no JSON, a model that is quantised already.
fn config_of(folder: &Path) -> Result<Map<String, Value>> {
    let path = folder.join("config.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let config: Map<String, Value> = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    ensure!(
        !config.contains_key("quantization_config"),
        "{}: the model is quantised already, expected an unquantised one (give --model the original)",
        path.display()
    );
    Ok(config)
}

/// What decides every byte of the new file, as one line.
fn request(source: &Checkpoint, settings: Option<&Settings>, calibration: Option<&[Vec<u32>]>, plan: &Plan) -> Result<String> {
    let mut hash = DefaultHasher::new();
    (&plan.header, calibration).hash(&mut hash);
    for file in source.files() {
        let data = fs::metadata(file).with_context(|| file.display().to_string())?;
        (file, data.len(), data.modified()?).hash(&mut hash);
    }
    Ok(format!("{:016x} {}", hash.finish(), serde_json::to_string(&settings)?))
}
