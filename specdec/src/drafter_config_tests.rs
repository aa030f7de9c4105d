//! The shipped drafters' configs, and drafters that do not fit their target.

use super::*;
use serde_json::{Value, json};

fn target() -> ModelConfig {
    ModelConfig::from_json(include_str!("../../models/straw-tiny/config.json"), None).unwrap()
}
const DFLASH: &str = include_str!("../../models/straw-tiny/dflash/config.json");
const WEAVER: &str = include_str!("../../models/straw-tiny/weaver/config.json");

fn with(base: &str, field: &str, value: Value) -> String {
    let mut config: Value = serde_json::from_str(base).unwrap();
    config[field] = value;
    config.to_string()
}

#[test]
fn the_shipped_drafters_fit_their_target() {
    let dflash = DflashConfig::from_json(DFLASH, &target()).unwrap();
    assert_eq!((dflash.block_size, dflash.max_depth(), dflash.mask_token_id), (16, 15, 3));
    assert_eq!(dflash.target_layer_ids, [1, 4, 6]);
    let weaver = WeaverConfig::from_json(WEAVER, &target(), &dflash).unwrap();
    assert_eq!((weaver.max_depth, weaver.pool), (15, 16));
}

#[test]
fn a_tap_may_read_the_last_layer_and_none_beyond_it() {
    let taps = |ids: Value| {
        DflashConfig::from_json(&with(DFLASH, "dflash_config", json!({"mask_token_id": 3, "target_layer_ids": ids})), &target())
    };
    assert_eq!(taps(json!([1, 7])).unwrap().target_layer_ids, [1, 7]);
    assert!(taps(json!([1, 8])).unwrap_err().to_string().contains("a tap after layer 8, expected layers 0 to 7"));
    assert!(taps(json!([4, 1])).unwrap_err().to_string().contains("a rising list"));
    assert_eq!(taps(Value::Null).unwrap().target_layer_ids, [1, 5]);
}

#[test]
fn drafters_of_other_models_are_refused() {
    let dflash = |field: &str, value| DflashConfig::from_json(&with(DFLASH, field, value), &target());
    assert!(
        dflash("vocab_size", json!(320))
            .unwrap_err()
            .to_string()
            .contains("vocab_size is 320 in the drafter, expected the target's 8192")
    );
    assert!(dflash("hidden_size", json!(64)).is_err());
    assert!(dflash("block_size", json!(1)).is_err());
    let fine = dflash("block_size", json!(8)).unwrap();
    assert!(
        WeaverConfig::from_json(WEAVER, &target(), &fine)
            .unwrap_err()
            .to_string()
            .contains("block_size is 16 in the Weaver, expected 8")
    );
}
