//! `straw quality`, `straw roofline` and `straw synth`.

use cross_tests::{command, finish, fixture};
use serde_json::Value;
use std::{fs, path::Path};

fn json(args: &[&str], paths: &[(&str, &Path)]) -> Value {
    let mut command = command();
    command.args(args).arg("--json");
    for (name, path) in paths {
        command.arg(name).arg(path);
    }
    let run = finish(&mut command);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn a_model_is_no_distance_from_itself_and_some_from_its_quantised_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (model, copy, text) = (fixture("qwen35-tiny-a"), dir.path().join("l"), dir.path().join("text.jsonl"));
    let rows = ["the thing that was there", "what they have for it is the one", "and this"];
    let rows: Vec<String> =
        rows.iter().enumerate().map(|(i, t)| format!("{{\"workload\": \"w{}\", \"text\": \"{t}\"}}\n", i % 2)).collect();
    fs::write(&text, rows.concat()).unwrap();
    json(&["quantize", "--scheme", "l"], &[("--model", &model), ("--out", &copy)]);
    let measure =
        |of: &Path| json(&["quality", "--engine", "reference"], &[("--model", of), ("--reference", &model), ("--text", &text)]);
    let (same, other) = (measure(&model), measure(&copy));
    // The engines differ in the last places of f32.
    assert!(same["all"]["kl_mean"].as_f64().unwrap() < 1e-6, "{same}");
    assert_eq!((&same["all"]["top1_agreement"], &same["all"]["texts"]), (&1.0.into(), &3.into()));
    assert!((1e-6..1.0).contains(&other["all"]["kl_mean"].as_f64().unwrap()), "{other}");
    assert_eq!(other["workloads"].as_object().unwrap().len(), 2);
    let limit = finish(
        command()
            .args(["quality", "--engine", "reference", "--limit", "1e-9", "--model"])
            .arg(&copy)
            .arg("--reference")
            .arg(&model)
            .arg("--text")
            .arg(&text),
    );
    assert_eq!(limit.code, Some(1), "{}", limit.stderr);
    assert!(limit.stdout.lines().last().unwrap().starts_with("all "), "{}", limit.stdout);
}

#[test]
fn a_ceiling_is_bandwidth_over_bytes() {
    let report = json(&["roofline", "--bytes", "5200000000", "--bandwidth", "153"], &[]);
    assert!((report["ceilings"][0]["tokens_per_s"].as_f64().unwrap() - 29.42).abs() < 0.01, "{report}");
    let model = fixture("qwen35-tiny-a");
    let report = json(&["roofline", "--bandwidth", "1"], &[("--model", &model)]);
    let bytes: Vec<u64> = report["ceilings"].as_array().unwrap().iter().map(|c| c["bytes_per_token"].as_u64().unwrap()).collect();
    assert!(bytes[0] > bytes[1] && bytes[1] > bytes[2], "as stored, L, M: {bytes:?}");
    let inspected = finish(command().args(["inspect", "--json"]).arg(&model));
    let inspected: Value = serde_json::from_str(&inspected.stdout).unwrap();
    assert_eq!(inspected["model"]["bytes_read_per_token"], bytes[0]);
    assert_eq!(finish(command().args(["roofline", "--bytes", "0"])).code, Some(2));
}

#[test]
fn a_synthetic_model_in_shards_loads_and_quantises() {
    let dir = tempfile::tempdir().unwrap();
    let (model, copy) = (dir.path().join("model"), dir.path().join("m"));
    let report = json(&["synth", "--shape", "llama-135m", "--layers", "1", "--shard", "40"], &[("--out", &model)]);
    assert_eq!(report["files"], 2, "{report}");
    json(&["quantize", "--scheme", "m"], &[("--model", &model), ("--out", &copy)]);
    for dir in [&model, &copy] {
        let out = dir.join("logits.safetensors");
        let run = finish(
            command().args(["logits", "--engine", "reference", "--tokens", "5,6", "--model"]).arg(dir).arg("--out").arg(&out),
        );
        assert_eq!(run.code, Some(0), "{}", run.stderr);
    }
}
