//! Nested, flat and dense configs, and the sentences for what is wrong in them.

use super::*;
use serde_json::{Value, json};

const NESTED: &str = include_str!("../../tests/fixtures/qwen35-tiny-a/config.json");
const FLAT: &str = include_str!("../../tests/fixtures/qwen35-tiny-a/flat/config.json");
const STRAW_TINY: &str = include_str!("../../models/straw-tiny/config.json");

fn with(base: &str, field: &str, value: Value) -> Result<ModelConfig, ConfigError> {
    let mut config: Value = serde_json::from_str(base).unwrap();
    config[field] = value;
    ModelConfig::from_json(&config.to_string(), None)
}

#[test]
fn nested_and_flat_layouts_are_one_model() {
    let nested = ModelConfig::from_json(NESTED, None).unwrap();
    assert_eq!(nested, ModelConfig::from_json(FLAT, None).unwrap());
    assert_eq!(nested.layers.len(), 4);
    assert_eq!((nested.count(LayerKind::GatedDeltaNet), nested.count(LayerKind::FullAttention)), (3, 1));
    assert_eq!(nested.attention.rotary_dim, 8);
    assert_eq!(nested.gdn.unwrap().conv_channels(), 128);
    assert!(!nested.tie_word_embeddings && nested.norm_plus_one && nested.mtp_layers == 1);
    assert_eq!(nested.eos_token_ids, [272]);
}

#[test]
fn generation_config_names_the_end_tokens() {
    let config = ModelConfig::from_json(STRAW_TINY, Some(r#"{"eos_token_id": [2, 0]}"#)).unwrap();
    assert_eq!(config.eos_token_ids, [2, 0]);
    assert!(config.tie_word_embeddings);
    assert_eq!(config.fixed_state_bytes(), 6 * 4 * (4 * 128 * 128 + 3 * 1024));
    assert_eq!(config.kv_bytes_per_token(4), 2 * 2 * 2 * 128 * 4);
}

#[test]
fn layer_types_win_over_the_interval() {
    let mut config: Value = serde_json::from_str(FLAT).unwrap();
    config.as_object_mut().unwrap().remove("layer_types");
    config["num_hidden_layers"] = json!(8);
    let kinds = ModelConfig::from_json(&config.to_string(), None).unwrap().layers;
    assert_eq!((0..8).filter(|&i| kinds[i] == LayerKind::FullAttention).collect::<Vec<_>>(), [3, 7]);
    assert!(with(FLAT, "layer_types", json!(["full_attention"])).is_err());
    assert!(with(FLAT, "layer_types", json!(vec!["mamba"; 4])).is_err());
}

#[test]
fn dense_families_load() {
    let base = json!({"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": true,
        "max_position_embeddings": 8192, "eos_token_id": 2});
    for (model_type, qk_norm, qkv_bias) in [("llama", false, false), ("qwen2", false, true), ("qwen3", true, false)] {
        let mut config = base.clone();
        config["model_type"] = json!(model_type);
        let config = ModelConfig::from_json(&config.to_string(), None).unwrap();
        assert_eq!((config.attention.qk_norm, config.attention.qkv_bias), (qk_norm, qkv_bias), "{model_type}");
        assert_eq!((config.attention.head_dim, config.attention.rotary_dim, config.gdn), (64, 64, None));
        assert!(!config.norm_plus_one && !config.attention.output_gate);
    }
}

#[test]
fn wrong_fields_get_a_sentence() {
    let message = |field: &str, value: Value| with(FLAT, field, value).unwrap_err().to_string();
    assert_eq!(
        message("model_type", json!("mamba")),
        "config.json: model_type \"mamba\" is not supported, expected qwen3_5, qwen3_5_text, qwen3, qwen2 or llama"
    );
    assert_eq!(message("hidden_size", json!(-4)), "config.json: hidden_size is -4, expected a whole number below 2^31");
    assert_eq!(message("vocab_size", Value::Null), "config.json: vocab_size is missing, expected a whole number of at least 1");
    assert_eq!(
        message("num_hidden_layers", json!(0)),
        "config.json: num_hidden_layers is 0, expected a whole number of at least 1"
    );
    assert!(message("num_key_value_heads", json!(3)).contains("a divisor of num_attention_heads = 4"));
    assert!(message("linear_num_value_heads", json!(5)).contains("a multiple of linear_num_key_heads = 2"));
    assert!(message("rope_parameters", json!({"rope_type": "yarn"})).contains("other RoPE scalings are not supported"));
    assert!(message("quantization_config", json!({"quant_method": "gptq"})).contains("straw quantize"));
    assert!(ModelConfig::from_json("[1]", None).unwrap_err().to_string().contains("a list, expected a JSON object"));
    assert!(ModelConfig::from_json("{", None).is_err());
}
