//! The command's manners: help, exit codes, one JSON document, pipes that close.

use cross_tests::{command, finish, fixture, run, workspace};
use serde_json::Value;
use std::{io::Write, process::Stdio};

#[test]
fn help_names_every_verb_and_gives_an_example() {
    let help = run(&["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!("help", help.stdout);
    for verb in ["tour", "generate", "explain", "inspect", "logits", "quality", "quantize", "roofline", "synth"] {
        let help = run(&[verb, "--help"]).stdout;
        assert!(help.contains("Example: straw "), "{verb}: {help}");
    }
    insta::assert_snapshot!("help_generate", run(&["generate", "--help"]).stdout);
    insta::assert_snapshot!("help_verify_law", run(&["verify", "law", "--help"]).stdout);
}

#[test]
fn usage_errors_exit_with_2() {
    for args in [&["gnerate"][..], &["generate"], &["generate", "-m", "x", "--temperature", "warm"], &["logits", "--tokens", "1"]]
    {
        let run = run(args);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(run.stderr.contains("--help"), "{args:?}: {}", run.stderr);
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let args = ["generate", "--raw", "-m", "the thing", "--max-tokens", "50", "--ignore-eos", "--model"];
    let model = fixture("qwen35-tiny-a");
    let mut child = command().args(args).arg(model).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Nobody reads: the first piece of text meets a closed pipe.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
}

#[test]
fn the_message_may_come_from_stdin() {
    let model = fixture("qwen35-tiny-a");
    let args = ["generate", "-m", "-", "--raw", "--json", "--max-tokens", "4", "--model"];
    let mut child = command().args(args).arg(&model).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"the thing").unwrap();
    let piped: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    let given =
        finish(command().args(["generate", "-m", "the thing", "--raw", "--json", "--max-tokens", "4", "--model"]).arg(&model));
    let given: Value = serde_json::from_str(&given.stdout).unwrap();
    assert_eq!(piped["token_ids"], given["token_ids"]);
    assert_eq!(piped["prompt_tokens"], given["prompt_tokens"]);
}

#[test]
fn inspect_counts_what_the_files_hold() {
    let dir = fixture("qwen35-tiny-a");
    let report: Value = serde_json::from_str(&finish(command().args(["inspect", "--json"]).arg(&dir)).stdout).unwrap();
    let model = &report["model"];
    assert_eq!(model["architecture"], "qwen35");
    assert_eq!(model["drafters"], serde_json::json!(["off", "ngram", "mtp"]));
    // 3 delta layers of [4, 16, 16] states and [128, 3] tails, one attention layer of 2 heads of 32: f32.
    assert_eq!(model["state_bytes_per_sequence"], 3 * 4 * (4 * 16 * 16 + 3 * 128));
    assert_eq!(model["kv_bytes_per_token"], 2 * 2 * 32 * 4);
    let tensors = report["tensors"].as_array().unwrap();
    let bytes = |part: &str| tensors.iter().filter(|t| t["part"] == part).map(|t| t["bytes"].as_u64().unwrap()).sum::<u64>();
    for part in report["parts"].as_array().unwrap() {
        assert_eq!(part["bytes"].as_u64().unwrap(), bytes(part["part"].as_str().unwrap()));
    }
    // Untied: of the embedding one row of 64 bf16 is read.
    assert_eq!(model["bytes_read_per_token"].as_u64().unwrap(), bytes("target") - 319 * 64 * 2);
    let file = finish(command().args(["inspect", "--json"]).arg(dir.join("model.safetensors")));
    let file: Value = serde_json::from_str(&file.stdout).unwrap();
    assert_eq!(file["tensors"].as_array().unwrap().len(), tensors.len());
    let text = finish(command().arg("inspect").arg(&dir)).stdout;
    assert!(text.contains("drafters         off, ngram, mtp\n"), "{text}");
}

#[test]
fn verify_law_finds_lossless_rules_lossless_and_lossy_ones_lossy() {
    let file = fixture("acceptance/acceptance.json");
    let law = finish(command().args(["verify", "law", "--json", "--cases"]).arg(&file));
    assert_eq!(law.code, Some(0), "{}", law.stderr);
    let report: Value = serde_json::from_str(&law.stdout).unwrap();
    let rules = report["rules"].as_array().unwrap();
    assert!(report["cases"].as_u64().unwrap() > 10 && rules.len() >= 7);
    for rule in rules {
        assert_eq!(rule["claims_lossless"], rule["lossless"], "{rule}");
        assert!(rule["max_abs_error"].is_f64(), "{rule}");
    }
    assert!(rules.iter().any(|r| r["lossless"] == false));
    assert!(report["arithmetic_max_abs_error"].as_f64().unwrap() <= 1e-12);
}

#[test]
fn verify_law_fails_on_wrong_figures_and_refuses_bad_files() {
    let text = std::fs::read_to_string(fixture("acceptance/acceptance.json")).unwrap();
    let mut cases: Value = serde_json::from_str(&text).unwrap();
    fn spoil(value: &mut Value) -> bool {
        match value {
            Value::Object(map) => map.iter_mut().any(|(key, v)| match v.get(1).and_then(Value::as_f64) {
                // A fraction and the same as a float.
                Some(x) if key == "expected_emitted" => {
                    v[1] = (x + 0.001).into();
                    true
                }
                _ => spoil(v),
            }),
            Value::Array(list) => list.iter_mut().any(spoil),
            _ => false,
        }
    }
    assert!(spoil(&mut cases), "the file has an expected_emitted figure");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cases.json");
    std::fs::write(&path, cases.to_string()).unwrap();
    let spoiled = finish(command().args(["verify", "law", "--cases"]).arg(&path));
    assert_eq!(spoiled.code, Some(1), "{} {}", spoiled.stdout, spoiled.stderr);
    std::fs::write(&path, "{}").unwrap();
    let empty = finish(command().args(["verify", "law", "--cases"]).arg(&path));
    assert_eq!((empty.code, empty.stderr.lines().count()), (Some(2), 1), "{}", empty.stderr);
}

#[test]
fn the_tour_shows_one_text_from_two_ways_of_decoding() {
    let tour = run(&["tour", "--json"]);
    assert_eq!(tour.code, Some(0), "{}", tour.stderr);
    let report: Value = serde_json::from_str(&tour.stdout).unwrap();
    for pair in [&report["greedy"], &report["sampled"]] {
        assert_eq!(pair["identical"], true);
        assert_eq!(pair["plain"]["completion_tokens"], pair["speculative"]["completion_tokens"]);
        assert_eq!(pair["plain"]["drafted"], 0);
    }
    let passes = |who: &str| report["greedy"][who]["passes"].as_u64().unwrap();
    assert!(passes("speculative") < passes("plain"));
    assert!(report["round"]["tree"]["drafted"].as_array().unwrap().len() <= 16);
}

#[test]
fn the_embedded_model_is_found_from_anywhere_and_overridden() {
    let elsewhere = tempfile::tempdir().unwrap();
    let found = finish(command().args(["inspect", "--json"]).current_dir(elsewhere.path()));
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    let missing = finish(command().arg("inspect").env("STRAW_MODELS", elsewhere.path()));
    assert_eq!(missing.code, Some(2));
    let place = elsewhere.path().join("straw-tiny");
    let expected = "has no config.json with weights beside it (unset STRAW_MODELS or set --model)";
    assert_eq!(missing.stderr, format!("straw: {}: {expected}\n", place.display()));
    let models = workspace().join("models");
    assert_eq!(finish(command().arg("inspect").env("STRAW_MODELS", &models)).code, Some(0));
}
