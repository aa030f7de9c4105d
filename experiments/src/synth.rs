//! `straw synth`: a model folder of random weights in a given shape, to measure speed and memory without a download.
//! Written number by number, so that a shape larger than memory can be made. Its answers mean nothing.

use crate::output::{self, Output};
use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use half::bf16;
use serde::Serialize;
use serde_json::{Map, Value, json};
use specdec::philox::philox4x32;
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    path::PathBuf,
    process::ExitCode,
};

/// Arguments of `straw synth`.
#[derive(Args, Debug)]
#[command(
    after_help = "Example: straw synth --shape 0.8b --out /tmp/qwen-0.8b && straw quantize --model /tmp/qwen-0.8b --scheme m"
)]
pub struct SynthArgs {
    /// Shape of the model
    #[arg(long, value_enum)]
    shape: Shape,
    /// Layers instead of the shape's own number
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Folder to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Split the weights into files of at most this many megabytes, with an index
    #[arg(long, value_name = "MB", default_value_t = 4096)]
    shard: u64,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Model folder whose tokenizer is copied
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Shapes of published models (their names are for orientation; weights are random).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Shape {
    /// Qwen3.5-0.8B: hybrid, 24 layers, hidden 1024, tied head
    #[value(name = "0.8b")]
    Small,
    /// Qwen3.5-9B: hybrid, 32 layers, hidden 4096
    #[value(name = "9b")]
    Large,
    /// A dense Llama of 135 M: 30 layers, hidden 576, vocabulary 49152, tied head
    #[value(name = "llama-135m")]
    Llama135m,
    /// A dense Llama of 0.5 B: 16 layers, hidden 1536, vocabulary 32768, tied head
    #[value(name = "llama-0.5b")]
    Llama500m,
}

/// Sizes of a shape.
struct Sizes {
    hidden: usize,
    inner: usize,
    layers: usize,
    vocab: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Key heads and value heads of the delta rule, 128 channels each; nothing in a dense model.
    delta: Option<(usize, usize)>,
    tied: bool,
}

/// Taps of the delta rule's convolution, and channels of its heads.
const TAPS: usize = 4;
const DELTA_DIM: usize = 128;

#[derive(Serialize)]
struct Report {
    out: PathBuf,
    shape: Shape,
    parameters: u64,
    bytes: u64,
    files: usize,
}

/// What a tensor holds.
#[derive(Clone, Copy)]
enum Fill {
    /// Uniform with variance 1 / inputs.
    Linear(usize),
    /// One value.
    Constant(f32),
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    fill: Fill,
}

/// Makes and writes.
pub fn run(args: &SynthArgs) -> Result<ExitCode> {
    ensure!(args.layers != Some(0), "the number of layers is 0, expected at least 1 (set --layers)");
    ensure!(
        !args.out.join("config.json").exists(),
        "{} exists already (choose another --out)",
        args.out.join("config.json").display()
    );
    let mut sizes = args.shape.sizes();
    sizes.layers = args.layers.unwrap_or(sizes.layers);
    let tensors = sizes.tensors();
    let bytes = |t: &Tensor| 2 * t.shape.iter().map(|&n| n as u64).product::<u64>();
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let mut files: Vec<Vec<Tensor>> = vec![Vec::new()];
    let (mut filled, mut total) = (0, 0);
    for tensor in tensors {
        total += bytes(&tensor);
        if filled > 0 && filled + bytes(&tensor) > args.shard << 20 {
            files.push(Vec::new());
            filled = 0;
        }
        filled += bytes(&tensor);
        files.last_mut().context("there is a first file")?.push(tensor);
    }
    let count = files.len();
    let mut map = Map::new();
    for (i, tensors) in files.iter().enumerate() {
        let name = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        write_file(&args.out.join(&name), tensors, args.seed).with_context(|| args.out.join(&name).display().to_string())?;
        map.extend(tensors.iter().map(|t| (t.name.clone(), Value::from(name.clone()))));
    }
    if count > 1 {
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        fs::write(args.out.join("model.safetensors.index.json"), index.to_string())?;
    }
    if let Some(from) = &args.tokenizer {
        for name in ["tokenizer.json", "tokenizer_config.json"].into_iter().filter(|name| from.join(name).exists()) {
            fs::copy(from.join(name), args.out.join(name)).with_context(|| from.join(name).display().to_string())?;
        }
    }
    fs::write(args.out.join("config.json"), serde_json::to_string_pretty(&sizes.config())?)?;
    let report = Report { out: args.out.clone(), shape: args.shape, parameters: total / 2, bytes: total, files: count };
    let mut out = Output::stdout();
    if args.json {
        out.json(&report)?;
    } else {
        let millions = report.parameters as f64 / 1e6;
        out.line(format_args!(
            "wrote {}: {millions:.1} M random parameters in bf16, {}",
            args.out.display(),
            output::bytes(total)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Shape {
    fn sizes(self) -> Sizes {
        let hybrid = Sizes {
            hidden: 1024,
            inner: 3584,
            layers: 24,
            vocab: 248_320,
            heads: 8,
            kv_heads: 2,
            head_dim: 256,
            delta: Some((16, 16)),
            tied: true,
        };
        let dense = Sizes {
            hidden: 576,
            inner: 1536,
            layers: 30,
            vocab: 49_152,
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            delta: None,
            tied: true,
        };
        match self {
            Self::Small => hybrid,
            Self::Large => Sizes {
                hidden: 4096,
                inner: 12_288,
                layers: 32,
                heads: 16,
                kv_heads: 4,
                delta: Some((16, 32)),
                tied: false,
                ..hybrid
            },
            Self::Llama135m => dense,
            Self::Llama500m => {
                Sizes { hidden: 1536, inner: 4096, layers: 16, vocab: 32_768, heads: 12, kv_heads: 4, head_dim: 128, ..dense }
            }
        }
    }
}

impl Sizes {
    /// Every fourth layer of a hybrid attends.
    fn attends(&self, layer: usize) -> bool {
        self.delta.is_none() || (layer + 1).is_multiple_of(4)
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (h, hybrid) = (self.hidden, self.delta.is_some());
        let mut all = Vec::new();
        let mut linear = |name: String, out: usize, inputs: usize| {
            all.push(Tensor { name: format!("{name}.weight"), shape: vec![out, inputs], fill: Fill::Linear(inputs) });
        };
        linear("model.embed_tokens".into(), self.vocab, h);
        for layer in 0..self.layers {
            let p = format!("model.layers.{layer}.");
            if self.attends(layer) {
                let q = self.heads * self.head_dim;
                // A hybrid's query projection holds the output gate too.
                linear(format!("{p}self_attn.q_proj"), if hybrid { 2 * q } else { q }, h);
                linear(format!("{p}self_attn.k_proj"), self.kv_heads * self.head_dim, h);
                linear(format!("{p}self_attn.v_proj"), self.kv_heads * self.head_dim, h);
                linear(format!("{p}self_attn.o_proj"), h, q);
            } else if let Some((keys, values)) = self.delta {
                linear(format!("{p}linear_attn.in_proj_qkv"), (2 * keys + values) * DELTA_DIM, h);
                linear(format!("{p}linear_attn.in_proj_z"), values * DELTA_DIM, h);
                linear(format!("{p}linear_attn.in_proj_a"), values, h);
                linear(format!("{p}linear_attn.in_proj_b"), values, h);
                linear(format!("{p}linear_attn.out_proj"), h, values * DELTA_DIM);
            }
            linear(format!("{p}mlp.gate_proj"), self.inner, h);
            linear(format!("{p}mlp.up_proj"), self.inner, h);
            linear(format!("{p}mlp.down_proj"), h, self.inner);
        }
        if !self.tied {
            linear("lm_head".into(), self.vocab, h);
        }
        // Norms around what leaves a vector alone: 0 where the engine adds 1.
        let neutral = Fill::Constant(if hybrid { 0.0 } else { 1.0 });
        let mut vector = |name: String, shape: Vec<usize>, fill: Fill| all.push(Tensor { name, shape, fill });
        for layer in 0..self.layers {
            let p = format!("model.layers.{layer}.");
            vector(format!("{p}input_layernorm.weight"), vec![h], neutral);
            vector(format!("{p}post_attention_layernorm.weight"), vec![h], neutral);
            match self.delta {
                Some(_) if self.attends(layer) => {
                    vector(format!("{p}self_attn.q_norm.weight"), vec![self.head_dim], neutral);
                    vector(format!("{p}self_attn.k_norm.weight"), vec![self.head_dim], neutral);
                }
                Some((keys, values)) => {
                    let channels = (2 * keys + values) * DELTA_DIM;
                    vector(format!("{p}linear_attn.conv1d.weight"), vec![channels, 1, TAPS], Fill::Linear(TAPS));
                    vector(format!("{p}linear_attn.A_log"), vec![values], Fill::Constant(0.0));
                    vector(format!("{p}linear_attn.dt_bias"), vec![values], Fill::Constant(0.0));
                    vector(format!("{p}linear_attn.norm.weight"), vec![DELTA_DIM], Fill::Constant(1.0));
                }
                None => {}
            }
        }
        vector("model.norm.weight".into(), vec![h], neutral);
        all
    }

    fn config(&self) -> Value {
        let mut config = json!({
            "model_type": if self.delta.is_some() { "qwen3_5_text" } else { "llama" },
            "architectures": [if self.delta.is_some() { "Qwen3_5ForCausalLM" } else { "LlamaForCausalLM" }],
            "vocab_size": self.vocab, "hidden_size": self.hidden, "intermediate_size": self.inner,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": self.tied,
            "max_position_embeddings": 4096, "dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 2, "attention_bias": false,
            "rope_theta": 1e4
        });
        if let Some((keys, values)) = self.delta {
            config["full_attention_interval"] = 4.into();
            config["linear_num_key_heads"] = keys.into();
            config["linear_num_value_heads"] = values.into();
            config["linear_key_head_dim"] = DELTA_DIM.into();
            config["linear_value_head_dim"] = DELTA_DIM.into();
            config["linear_conv_kernel_dim"] = TAPS.into();
            config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25});
        }
        config
    }
}

fn write_file(path: &std::path::Path, tensors: &[Tensor], seed: u64) -> Result<()> {
    let mut fields = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut end = 0u64;
    for tensor in tensors {
        let begin = end;
        end += 2 * tensor.shape.iter().map(|&n| n as u64).product::<u64>();
        fields.insert(tensor.name.clone(), json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, end]}));
    }
    let mut header = serde_json::to_vec(&fields)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut to = BufWriter::with_capacity(1 << 20, File::create(path)?);
    to.write_all(&(header.len() as u64).to_le_bytes())?;
    to.write_all(&header)?;
    for tensor in tensors {
        let elements = tensor.shape.iter().product::<usize>();
        match tensor.fill {
            Fill::Constant(value) => to.write_all(&bf16::from_f32(value).to_le_bytes().repeat(elements))?,
            Fill::Linear(inputs) => {
                // A uniform number in (-1, 1) has a standard deviation of sqrt(1/3).
                let scale = (3.0 / inputs as f32).sqrt();
                // The name takes part, so that no two tensors share numbers.
                let salt = tensor.name.bytes().fold(seed, |s, b| s.wrapping_mul(0x100_0000_01b3) ^ u64::from(b));
                let key = [salt as u32, (salt >> 32) as u32];
                let mut bytes = Vec::with_capacity(16);
                for block in 0..elements.div_ceil(8) {
                    bytes.clear();
                    for word in philox4x32(key, [block as u32, (block >> 32) as u32, 0, 0]) {
                        for half in [word as u16 as i16, (word >> 16) as u16 as i16] {
                            bytes.extend(bf16::from_f32(f32::from(half) / 32768.0 * scale).to_le_bytes());
                        }
                    }
                    to.write_all(&bytes[..2 * (elements - 8 * block).min(8)])?;
                }
            }
        }
    }
    to.flush()?;
    Ok(())
}
