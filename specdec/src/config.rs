//! A target model's shape, read from Hugging Face's config.json (nested or flat) with every invariant checked.
//! Knows the four decoder families straw runs; nothing of tensors or files.

use crate::config_json::Fields;
use crate::quantisation::QuantScheme;
use serde::{Deserialize, Serialize};

/// Decoder families. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// Gated DeltaNet and gated attention.
    Qwen35,
    /// Dense attention with q/k norm.
    Qwen3,
    /// Dense attention with q/k/v biases.
    Qwen2,
    /// Dense attention.
    Llama,
}

/// The mixer of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerKind {
    /// Linear attention with the gated delta rule and a causal convolution.
    GatedDeltaNet,
    /// Softmax attention.
    FullAttention,
}

/// Attention sizes and habits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionDims {
    /// Query heads.
    pub query_heads: usize,
    /// Key/value heads; query head `j` reads head `j / (query_heads / kv_heads)`.
    pub kv_heads: usize,
    /// Channels of a head; not `hidden_size / query_heads` in general.
    pub head_dim: usize,
    /// Leading channels that RoPE rotates, even.
    pub rotary_dim: usize,
    /// RoPE base.
    pub rope_theta: f64,
    /// RMSNorm over the head's channels of q and k, before RoPE.
    pub qk_norm: bool,
    /// The output is multiplied by `sigmoid(gate)`; the query projection then holds `[q | gate]` per head.
    pub output_gate: bool,
    /// q, k and v projections have biases.
    pub qkv_bias: bool,
}

/// Gated DeltaNet sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GdnDims {
    /// Query/key heads.
    pub key_heads: usize,
    /// Value heads; value head `j` uses key head `j / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Channels of a query or key head.
    pub key_dim: usize,
    /// Channels of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub conv_kernel: usize,
}

impl GdnDims {
    /// Channels that pass the convolution: all of q, k and v.
    pub fn conv_channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Elements of the recurrent state of one layer.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }
}

/// Everything an engine needs to know of a target besides its tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Family.
    pub architecture: Architecture,
    /// Rows of the embedding; may exceed the tokenizer's size.
    pub vocab_size: usize,
    /// Channels of the residual stream.
    pub hidden_size: usize,
    /// Channels inside the MLP.
    pub intermediate_size: usize,
    /// Mixer of every layer.
    pub layers: Vec<LayerKind>,
    /// Attention layers.
    pub attention: AttentionDims,
    /// Gated DeltaNet layers; present when `layers` has one.
    pub gdn: Option<GdnDims>,
    /// Inside the square root of every RMSNorm but the delta rule's l2 norm.
    pub rms_norm_eps: f64,
    /// Norm weights are stored around 0 and applied as `1 + w` (all but the delta rule's output norm).
    pub norm_plus_one: bool,
    /// The head is the embedding.
    pub tie_word_embeddings: bool,
    /// Multi-token-prediction layers in the checkpoint: 0 or 1.
    pub mtp_layers: usize,
    /// Context: positions `0..max_positions`.
    pub max_positions: usize,
    /// Tokens that end an answer.
    pub eos_token_ids: Vec<u32>,
    /// Storage of the weights.
    pub quantisation: QuantScheme,
}

impl ModelConfig {
    /// Reads `config.json`, and end tokens from `generation_config.json` where given (they win).
    pub fn from_json(config: &str, generation_config: Option<&str>) -> Result<Self, ConfigError> {
        let root = Fields::parse("config.json", config)?;
        let text = root.object("text_config")?.unwrap_or_else(|| root.clone());
        let name = text.text("model_type")?;
        let architecture = match name.as_str() {
            "qwen3_5_text" | "qwen3_5" => Architecture::Qwen35,
            "qwen3" => Architecture::Qwen3,
            "qwen2" => Architecture::Qwen2,
            "llama" => Architecture::Llama,
            _ => return Err(ConfigError::UnknownArchitecture(name)),
        };
        let layers = layer_kinds(&text, architecture)?;
        let gdn = if layers.contains(&LayerKind::GatedDeltaNet) { Some(gdn_dims(&text)?) } else { None };
        let mut eos_token_ids = text.ids("eos_token_id")?;
        if eos_token_ids.is_empty() {
            eos_token_ids = root.ids("eos_token_id")?;
        }
        if let Some(generation) = generation_config {
            let ids = Fields::parse("generation_config.json", generation)?.ids("eos_token_id")?;
            if !ids.is_empty() {
                eos_token_ids = ids;
            }
        }
        let tied = root.flag("tie_word_embeddings")?.or(text.flag("tie_word_embeddings")?);
        let mtp_layers = text.optional_size("mtp_num_hidden_layers")?.unwrap_or(0);
        if mtp_layers > 1 {
            return Err(ConfigError::field("mtp_num_hidden_layers", mtp_layers, "0 or 1"));
        }
        Ok(Self {
            architecture,
            vocab_size: text.size("vocab_size")?,
            hidden_size: text.size("hidden_size")?,
            intermediate_size: text.size("intermediate_size")?,
            attention: attention_dims(&text, architecture)?,
            gdn,
            layers,
            rms_norm_eps: text.positive("rms_norm_eps")?,
            norm_plus_one: architecture == Architecture::Qwen35,
            tie_word_embeddings: tied.unwrap_or(false),
            mtp_layers,
            max_positions: text.optional_size("max_position_embeddings")?.unwrap_or(32768),
            eos_token_ids,
            quantisation: QuantScheme::of(&root)?,
        })
    }

    /// Layers of one kind.
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|&&k| k == kind).count()
    }

    /// Bytes of recurrent state one sequence holds whatever its length: f32 delta states and f32 convolution tails.
    pub fn fixed_state_bytes(&self) -> usize {
        let per_layer = self.gdn.map_or(0, |g| 4 * (g.state_len() + (g.conv_kernel - 1) * g.conv_channels()));
        self.count(LayerKind::GatedDeltaNet) * per_layer
    }

    /// Bytes of key/value cache one token adds, at `bytes` per element.
    pub fn kv_bytes_per_token(&self, bytes: usize) -> usize {
        self.count(LayerKind::FullAttention) * 2 * self.attention.kv_heads * self.attention.head_dim * bytes
    }
}

fn layer_kinds(text: &Fields, architecture: Architecture) -> Result<Vec<LayerKind>, ConfigError> {
    let count = text.size("num_hidden_layers")?;
    if count > 4096 {
        return Err(ConfigError::field("num_hidden_layers", count, "at most 4096"));
    }
    if architecture != Architecture::Qwen35 {
        if text.flag("use_sliding_window")? == Some(true) {
            return Err(ConfigError::field("use_sliding_window", true, "false (sliding windows are not supported)"));
        }
        return Ok(vec![LayerKind::FullAttention; count]);
    }
    let Some(names) = text.texts("layer_types")? else {
        let interval = text.optional_size("full_attention_interval")?.unwrap_or(4);
        let kind = |i: usize| if (i + 1).is_multiple_of(interval) { LayerKind::FullAttention } else { LayerKind::GatedDeltaNet };
        return Ok((0..count).map(kind).collect());
    };
    if names.len() != count {
        return Err(ConfigError::field(
            "layer_types",
            format!("{} entries", names.len()),
            &format!("num_hidden_layers = {count}"),
        ));
    }
    names
        .iter()
        .map(|name| match name.as_str() {
            "linear_attention" => Ok(LayerKind::GatedDeltaNet),
            "full_attention" => Ok(LayerKind::FullAttention),
            _ => Err(ConfigError::field("layer_types", name, "linear_attention or full_attention")),
        })
        .collect()
}

fn attention_dims(text: &Fields, architecture: Architecture) -> Result<AttentionDims, ConfigError> {
    let query_heads = text.size("num_attention_heads")?;
    let kv_heads = text.optional_size("num_key_value_heads")?.unwrap_or(query_heads);
    if !query_heads.is_multiple_of(kv_heads) {
        return Err(ConfigError::field(
            "num_key_value_heads",
            kv_heads,
            &format!("a divisor of num_attention_heads = {query_heads}"),
        ));
    }
    let head_dim = match text.optional_size("head_dim")? {
        Some(dim) => dim,
        None => text.size("hidden_size")? / query_heads,
    };
    let rope = text.object("rope_parameters")?.or(text.object("rope_scaling")?);
    if let Some(rope) = &rope {
        for key in ["rope_type", "type"] {
            match rope.optional_text(key)?.as_deref() {
                None | Some("default") => {}
                Some(other) => return Err(ConfigError::field(key, other, "default (other RoPE scalings are not supported)")),
            }
        }
    }
    let number = |name: &str| match rope.as_ref().map(|r| r.optional_positive(name)).transpose()?.flatten() {
        Some(value) => Ok(Some(value)),
        None => text.optional_positive(name),
    };
    let fraction = number("partial_rotary_factor")?.unwrap_or(if architecture == Architecture::Qwen35 { 0.25 } else { 1.0 });
    let rotary_dim = (head_dim as f64 * fraction) as usize;
    if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
        return Err(ConfigError::field(
            "partial_rotary_factor",
            fraction,
            &format!("an even number of rotated channels of {head_dim}"),
        ));
    }
    Ok(AttentionDims {
        query_heads,
        kv_heads,
        head_dim,
        rotary_dim,
        rope_theta: number("rope_theta")?.unwrap_or(10_000.0),
        qk_norm: matches!(architecture, Architecture::Qwen35 | Architecture::Qwen3),
        output_gate: architecture == Architecture::Qwen35,
        qkv_bias: match architecture {
            Architecture::Qwen2 => true,
            _ => text.flag("attention_bias")?.unwrap_or(false),
        },
    })
}

fn gdn_dims(text: &Fields) -> Result<GdnDims, ConfigError> {
    let dims = GdnDims {
        key_heads: text.size("linear_num_key_heads")?,
        value_heads: text.size("linear_num_value_heads")?,
        key_dim: text.size("linear_key_head_dim")?,
        value_dim: text.size("linear_value_head_dim")?,
        conv_kernel: text.size("linear_conv_kernel_dim")?,
    };
    if !dims.value_heads.is_multiple_of(dims.key_heads) {
        let expected = format!("a multiple of linear_num_key_heads = {}", dims.key_heads);
        return Err(ConfigError::field("linear_num_value_heads", dims.value_heads, &expected));
    }
    if !(2..=16).contains(&dims.conv_kernel) {
        return Err(ConfigError::field("linear_conv_kernel_dim", dims.conv_kernel, "2 to 16"));
    }
    Ok(dims)
}

/// Why a config was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or not an object.
    #[error("{file}: {found}, expected a JSON object")]
    NotJson {
        /// The file's name.
        file: String,
        /// The parser's words.
        found: String,
    },
    /// A model family that straw does not run.
    #[error("config.json: model_type {0:?} is not supported, expected qwen3_5, qwen3_5_text, qwen3, qwen2 or llama")]
    UnknownArchitecture(String),
    /// A field that is missing or out of range.
    #[error("config.json: {name} is {found}, expected {expected}")]
    Field {
        /// The field.
        name: String,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
}

impl ConfigError {
    pub(crate) fn field(name: &str, found: impl ToString, expected: &str) -> Self {
        Self::Field { name: name.into(), found: found.to_string(), expected: expected.into() }
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
