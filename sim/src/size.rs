//! A model as a roofline sees it, counted from its configuration: weights a row multiplies, bytes a pass reads, what grows with
//! context. Counts matrices only; norms, biases and convolutions are below a thousandth. Knows no machine.

use crate::{SimError, error::positive};
use specdec::{LayerKind, ModelConfig};

/// Weights are counted once per row, bytes once per pass. The input embedding is read a row at a time and not counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelSize {
    /// Bytes of weights a pass reads, LM head excluded.
    pub weight_bytes: f64,
    /// Weights, LM head excluded.
    pub weights: f64,
    /// Bytes of the LM head.
    pub head_bytes: f64,
    /// Weights of the LM head.
    pub head_weights: f64,
    /// Bytes of keys and values per context token.
    pub kv_bytes_per_token: f64,
    /// Multiply-adds of attention per verified row and context token.
    pub attention_macs: f64,
    /// Bytes of recurrent state, read once and written once per pass.
    pub state_bytes: f64,
}

impl ModelSize {
    /// Counts a model stored at `bits` per weight (scales included), with keys and values of two bytes.
    ///
    /// Error: bits that are not above 0.
    pub fn of(config: &ModelConfig, bits: f64) -> Result<Self, SimError> {
        let bytes = positive("bits per weight", bits)? / 8.0;
        let (hidden, attention) = (config.hidden_size, config.attention);
        let (queries, keys) = (attention.query_heads * attention.head_dim, attention.kv_heads * attention.head_dim);
        let gated = if attention.output_gate { 2 } else { 1 };
        let attention_weights = hidden * (gated * queries + 2 * keys) + queries * hidden;
        let delta_weights = config.gdn.map_or(0, |g| {
            let values = g.value_heads * g.value_dim;
            // q, k and v; output gate; write strength and decay; output.
            hidden * (2 * g.key_heads * g.key_dim + values) + hidden * values + 2 * hidden * g.value_heads + values * hidden
        });
        let attention_layers = config.count(LayerKind::FullAttention);
        let mlp_weights = 3 * hidden * config.intermediate_size;
        let weights = attention_layers * attention_weights
            + config.count(LayerKind::GatedDeltaNet) * delta_weights
            + config.layers.len() * mlp_weights;
        let head = config.vocab_size * hidden;
        Ok(Self {
            weight_bytes: weights as f64 * bytes,
            weights: weights as f64,
            head_bytes: head as f64 * bytes,
            head_weights: head as f64,
            kv_bytes_per_token: config.kv_bytes_per_token(2) as f64,
            attention_macs: (attention_layers * 2 * queries) as f64,
            state_bytes: config.fixed_state_bytes() as f64,
        })
    }

    /// Bytes of weights that a plain pass reads.
    pub fn read_bytes(&self) -> f64 {
        self.weight_bytes + self.head_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of Qwen3.5 9B: with an input embedding as large as its head it must come to about 9e9.
    #[test]
    fn qwen35_9b_has_nine_billion_weights() {
        let json = r#"{"model_type":"qwen3_5_text","vocab_size":248320,"hidden_size":4096,"intermediate_size":12288,
            "num_hidden_layers":32,"num_attention_heads":16,"num_key_value_heads":4,"head_dim":256,"rms_norm_eps":1e-6,
            "linear_num_key_heads":16,"linear_num_value_heads":32,"linear_key_head_dim":128,"linear_value_head_dim":128,
            "linear_conv_kernel_dim":4,"rope_parameters":{"rope_theta":1e7,"partial_rotary_factor":0.25},"eos_token_id":1}"#;
        let config = ModelConfig::from_json(json, None).unwrap();
        let size = ModelSize::of(&config, 4.0).unwrap();
        let attention = 8 * (4096 * (2 * 4096 + 2 * 1024) + 4096 * 4096);
        let delta = 24 * (4096 * (2 * 2048 + 4096) + 4096 * 4096 + 2 * 4096 * 32 + 4096 * 4096);
        let mlp = 32.0 * 3.0 * 4096.0 * 12288.0;
        assert_eq!(size.weights, f64::from(attention) + f64::from(delta) + mlp);
        assert!((size.weights + 2.0 * size.head_weights - 8.95e9).abs() < 0.01e9);
        assert_eq!(size.read_bytes(), (size.weights + size.head_weights) / 2.0);
        assert_eq!((size.kv_bytes_per_token, size.attention_macs), (8.0 * 2.0 * 1024.0 * 2.0, 8.0 * 2.0 * 4096.0));
        assert!(ModelSize::of(&config, 0.0).is_err());
    }
}
