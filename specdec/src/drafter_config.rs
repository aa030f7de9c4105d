//! Shapes of the drafters that come as checkpoints of their own: DFlash (z-lab's config.json) and Weaver.
//! Each is checked against its target, so that a drafter of another model is refused before it can draft nonsense.

use crate::{ConfigError, ModelConfig, config_json::Fields};
use serde::{Deserialize, Serialize};

/// DFlash, a block drafter (arXiv 2602.06036): one pass over `[root, mask, mask, ...]` gives the marginals of the next
/// `block_size - 1` positions. It reads the target's residual stream after the tapped layers, and shares the target's
/// embedding and head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DflashConfig {
    /// Channels; the target's.
    pub hidden_size: usize,
    /// Channels inside the MLP.
    pub intermediate_size: usize,
    /// Draft layers, all full attention.
    pub layers: usize,
    /// Query heads.
    pub query_heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Channels of a head, all of them rotated.
    pub head_dim: usize,
    /// RoPE base.
    pub rope_theta: f64,
    /// Inside the square root of every norm.
    pub rms_norm_eps: f64,
    /// Rows of a block: the root and `block_size - 1` masks.
    pub block_size: usize,
    /// Token of the mask rows.
    pub mask_token_id: u32,
    /// Target layers whose output (residual stream, before the final norm) is read; zero-based, rising.
    pub target_layer_ids: Vec<usize>,
}

impl DflashConfig {
    /// Reads and checks `dflash/config.json` against its target.
    pub fn from_json(config: &str, target: &ModelConfig) -> Result<Self, ConfigError> {
        let fields = Fields::parse("dflash/config.json", config)?;
        let nested = fields.object("dflash_config")?.unwrap_or_else(|| fields.clone());
        let dflash = Self {
            hidden_size: fields.size("hidden_size")?,
            intermediate_size: fields.size("intermediate_size")?,
            layers: fields.size("num_hidden_layers")?,
            query_heads: fields.size("num_attention_heads")?,
            kv_heads: fields.size("num_key_value_heads")?,
            head_dim: fields.size("head_dim")?,
            rope_theta: fields.positive("rope_theta")?,
            rms_norm_eps: fields.positive("rms_norm_eps")?,
            block_size: match nested.optional_size("block_size")? {
                Some(size) => size,
                None => fields.size("block_size")?,
            },
            mask_token_id: nested.size("mask_token_id")? as u32,
            target_layer_ids: match nested.sizes("target_layer_ids")? {
                Some(ids) => ids,
                None => default_taps(target.layers.len(), fields.size("num_hidden_layers")?),
            },
        };
        if let Some(kinds) = fields.texts("layer_types")?
            && kinds.iter().any(|k| k != "full_attention")
        {
            return Err(ConfigError::field("layer_types", kinds.join(", "), "full_attention only"));
        }
        let same = [
            ("hidden_size", dflash.hidden_size, target.hidden_size),
            ("vocab_size", fields.size("vocab_size")?, target.vocab_size),
            ("num_target_layers", fields.optional_size("num_target_layers")?.unwrap_or(target.layers.len()), target.layers.len()),
        ];
        for (name, found, expected) in same {
            if found != expected {
                return Err(ConfigError::field(name, format!("{found} in the drafter"), &format!("the target's {expected}")));
            }
        }
        if dflash.block_size < 2 {
            return Err(ConfigError::field("block_size", dflash.block_size, "at least 2"));
        }
        if dflash.mask_token_id as usize >= target.vocab_size {
            return Err(ConfigError::field(
                "mask_token_id",
                dflash.mask_token_id,
                &format!("below the vocabulary size {}", target.vocab_size),
            ));
        }
        let layers = target.layers.len();
        if let Some(tap) = dflash.target_layer_ids.iter().find(|&&tap| tap >= layers) {
            return Err(ConfigError::field(
                "target_layer_ids",
                format!("a tap after layer {tap}"),
                &format!("layers 0 to {}", layers - 1),
            ));
        }
        if dflash.target_layer_ids.is_empty() || dflash.target_layer_ids.windows(2).any(|w| w[0] >= w[1]) {
            return Err(ConfigError::field("target_layer_ids", format!("{:?}", dflash.target_layer_ids), "a rising list"));
        }
        if !dflash.query_heads.is_multiple_of(dflash.kv_heads) || !dflash.head_dim.is_multiple_of(2) {
            return Err(ConfigError::field(
                "num_key_value_heads",
                dflash.kv_heads,
                "a divisor of num_attention_heads, with an even head_dim",
            ));
        }
        Ok(dflash)
    }

    /// Tokens that one pass drafts along one path.
    pub fn max_depth(&self) -> usize {
        self.block_size - 1
    }
}

/// z-lab's rule for configs without taps: evenly spread, clear of the first and the last layers.
fn default_taps(target_layers: usize, draft_layers: usize) -> Vec<usize> {
    if draft_layers == 1 || target_layers < 5 {
        return vec![target_layers / 2];
    }
    let span = (target_layers - 4) as f64 / (draft_layers - 1) as f64;
    (0..draft_layers).map(|i| (1.0 + i as f64 * span).round_ties_even() as usize).collect()
}

/// Weaver (arXiv 2607.06763): rescores the shortlist of every DFlash position given the tokens chosen on the path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WeaverConfig {
    /// Channels of the target.
    pub target_hidden_size: usize,
    /// Channels inside Weaver.
    pub model_dim: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads; as many key/value heads.
    pub heads: usize,
    /// Channels inside the MLP.
    pub mlp_dim: usize,
    /// Deepest position it scores.
    pub max_depth: usize,
    /// Candidates per position.
    pub pool: usize,
    /// RoPE base; all channels of a head are rotated.
    pub rope_theta: f64,
    /// Inside the square root of every norm.
    pub rms_norm_eps: f64,
}

impl WeaverConfig {
    /// Reads and checks `weaver/config.json` against its target and the DFlash drafter whose shortlists it rescores.
    pub fn from_json(config: &str, target: &ModelConfig, dflash: &DflashConfig) -> Result<Self, ConfigError> {
        let fields = Fields::parse("weaver/config.json", config)?;
        let weaver = Self {
            target_hidden_size: fields.size("target_hidden_size")?,
            model_dim: fields.size("model_dim")?,
            layers: fields.size("num_layers")?,
            heads: fields.size("num_heads")?,
            mlp_dim: fields.size("hidden_dim")?,
            max_depth: fields.size("max_depth")?,
            pool: fields.size("candidate_pool_size")?,
            rope_theta: fields.positive("rope_theta")?,
            rms_norm_eps: fields.positive("rms_norm_eps")?,
        };
        let same = [
            ("target_hidden_size", weaver.target_hidden_size, target.hidden_size),
            ("vocab_size", fields.size("vocab_size")?, target.vocab_size),
            ("block_size", fields.size("block_size")?, dflash.block_size),
        ];
        for (name, found, expected) in same {
            if found != expected {
                return Err(ConfigError::field(name, format!("{found} in the Weaver"), &expected.to_string()));
            }
        }
        if weaver.max_depth > dflash.max_depth() {
            return Err(ConfigError::field(
                "max_depth",
                weaver.max_depth,
                &format!("at most block_size - 1 = {}", dflash.max_depth()),
            ));
        }
        if weaver.pool > target.vocab_size {
            return Err(ConfigError::field(
                "candidate_pool_size",
                weaver.pool,
                &format!("at most the vocabulary size {}", target.vocab_size),
            ));
        }
        if !weaver.model_dim.is_multiple_of(2 * weaver.heads) {
            return Err(ConfigError::field(
                "num_heads",
                weaver.heads,
                &format!("heads of an even width dividing model_dim = {}", weaver.model_dim),
            ));
        }
        Ok(weaver)
    }
}

#[cfg(test)]
#[path = "drafter_config_tests.rs"]
mod tests;
