//! `straw quantize --scheme l|m`: what the reference makes of the copies, mixed widths, calibration, interruption.

use cross_tests::{Run, command, finish, fixture};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

const TOKENS: &str = "154,38,266,70,228,176,85,63";

fn quantize(out: &Path, args: &[&str]) -> Run {
    finish(command().args(["quantize", "--json", "--model"]).arg(fixture("qwen35-tiny-a")).arg("--out").arg(out).args(args))
}

fn report(out: &Path, args: &[&str]) -> Value {
    let run = quantize(out, args);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

fn logits(model: &Path) -> Vec<f32> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("logits.safetensors");
    let args = ["logits", "--engine", "reference", "--tokens", TOKENS, "--model"];
    let run = finish(command().args(args).arg(model).arg("--out").arg(&out));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let bytes = fs::read(out).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors.tensor("logits").unwrap().data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Relative rms difference of logits to the original's.
fn difference(model: &Path) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let (found, original) = (logits(model), logits(&fixture("qwen35-tiny-a")));
    let error: f64 = found.iter().zip(&original).map(|(a, b)| square(a - b)).sum();
    (error / original.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    (dir, path)
}

/// The fixture's random weights amplify errors: q8 has 0.1. Weights that were read wrongly would give 1.4.
#[test]
fn l_and_m_read_back_as_the_model_they_came_from() {
    for (args, limit) in [
        (&["--scheme", "l"][..], 0.15),
        (&["--scheme", "l", "--hadamard", "0", "--group", "32"], 0.15),
        (&["--scheme", "m"], 1.1),
        (&["--scheme", "m", "--eight-bit", "none", "--hadamard", "0"], 1.2),
    ] {
        let (_keep, out) = place();
        let report = report(&out, args);
        let found = difference(&out);
        assert!((1e-4..limit).contains(&found), "{args:?}: {found}");
        let config: Value = serde_json::from_str(&fs::read_to_string(out.join("config.json")).unwrap()).unwrap();
        let quant = &config["quantization_config"];
        assert_eq!((&quant["scheme"], &quant["version"]), (&args[1].into(), &2.into()));
        assert_eq!((&quant["group_size"], &quant["hadamard"]), (&report["settings"]["group"], &report["settings"]["hadamard"]));
        let bits = report["parts"][0]["bits_per_weight"].as_f64().unwrap();
        assert!(if args[1] == "l" { (8.0..11.0).contains(&bits) } else { (4.0..9.0).contains(&bits) }, "{args:?}: {bits}");
        let tensors = report["parts"][0]["tensors"].as_array().unwrap();
        assert!(tensors.iter().all(|t| !t["name"].as_str().unwrap().starts_with("mtp.")), "the MTP head is a drafter");
    }
}

#[test]
fn m_keeps_chosen_tensors_at_eight_bits_and_packs_the_others() {
    let (_keep, out) = place();
    let report = report(&out, &["--scheme", "m", "--drafters", "--no-acceptance"]);
    let bytes = fs::read(out.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    for t in report["parts"][0]["tensors"].as_array().unwrap() {
        let name = t["name"].as_str().unwrap();
        let (rows, inputs) = (t["shape"][0].as_u64().unwrap() as usize, t["shape"][1].as_u64().unwrap() as usize);
        let view = tensors.tensor(name).unwrap();
        let eight = name.contains("embed_tokens") || name.contains("lm_head");
        let expected = if eight { (Dtype::I8, vec![rows, inputs]) } else { (Dtype::U8, vec![rows, inputs.div_ceil(2)]) };
        assert_eq!((view.dtype(), view.shape().to_vec()), expected, "{name}");
        assert_eq!(tensors.tensor(&format!("{name}.zero")).is_ok(), !eight, "{name}");
        let signs = tensors.tensor(&format!("hadamard.signs.{inputs}")).unwrap();
        let expected: Vec<u8> = specdec::hadamard::signs(inputs).iter().map(|&s| s as u8).collect();
        assert_eq!(signs.data(), expected);
    }
}

#[test]
fn calibration_changes_m_and_needs_feedback() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.txt");
    fs::write(&text, "the thing that was there is the one and this is what they have for it ".repeat(40)).unwrap();
    let error = |args: &[&str]| {
        let (_keep, out) = place();
        let all = [&["--scheme", "m", "--eight-bit", "none"], args].concat();
        report(&out, &all)["parts"][0]["relative_rms_error"].as_f64().unwrap()
    };
    let calibrated = error(&["--calibrate", text.to_str().unwrap(), "--calibration-tokens", "1000"]);
    // Feedback trades weight error for output error: the weights themselves are further away.
    assert!(calibrated > error(&[]), "{calibrated}");
    for args in [&["--rounding", "feedback"][..], &["--rounding", "nearest", "--calibrate", text.to_str().unwrap()]] {
        let (_keep, out) = place();
        assert_eq!(quantize(&out, &[&["--scheme", "m"], args].concat()).code, Some(2), "{args:?}");
    }
}

/// Where a tensor's bytes lie in a file.
fn span(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let fields: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let offsets = |i: usize| 8 + header + fields[name]["data_offsets"][i].as_u64().unwrap() as usize;
    offsets(0)..offsets(1)
}

#[test]
fn an_interrupted_run_continues_and_ends_with_the_same_bytes() {
    let (_keep, out) = place();
    report(&out, &["--scheme", "m"]);
    let whole = fs::read(out.join("model.safetensors")).unwrap();
    let (_keep, cut) = place();
    let (weights, partial) = (cut.join("model.safetensors"), cut.join("model.safetensors.partial"));
    let journal = cut.join("model.safetensors.journal");
    // Stopped after the weights: a folder stands where the tokenizer is to be written.
    let obstacle = cut.join("tokenizer.json.partial");
    fs::create_dir_all(&obstacle).unwrap();
    assert_eq!(quantize(&cut, &["--scheme", "m"]).code, Some(2));
    assert!(journal.exists() && !cut.join("config.json").exists(), "without config.json it is no model");
    fs::remove_dir(&obstacle).unwrap();
    // Turned into a run that was stopped inside the weights: `lost` has no bytes and no line in the journal.
    let (lost, done) = ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight");
    let name = |stem: &str| {
        let tensors = SafeTensors::deserialize(&whole).unwrap();
        tensors.names().iter().find(|n| n.ends_with(stem.trim_start_matches("model."))).unwrap().to_string()
    };
    let (lost, done) = (name(lost), name(done));
    let lines = fs::read_to_string(&journal).unwrap();
    let kept: String = lines.lines().filter(|l| !l.contains(&format!("{lost:?}"))).map(|l| format!("{l}\n")).collect();
    assert_ne!(kept, lines);
    fs::write(&journal, &kept).unwrap();
    let mut bytes = whole.clone();
    bytes[span(&whole, &lost)].fill(0);
    // Only a finished tensor's bytes are believed: these stay as they are, so continuing did not begin anew.
    bytes[span(&whole, &done)].fill(0x33);
    fs::remove_file(&weights).unwrap();
    fs::write(&partial, &bytes).unwrap();
    report(&cut, &["--scheme", "m"]);
    let mut expected = whole.clone();
    expected[span(&whole, &done)].fill(0x33);
    assert!(fs::read(&weights).unwrap() == expected, "the lost tensor is written again, the finished one is not");
    assert!(fs::read_dir(&cut).unwrap().all(|f| !f.unwrap().file_name().to_string_lossy().contains(".partial")));
    assert!(!journal.exists());
    // Another request does not continue this one's work.
    fs::remove_file(cut.join("config.json")).unwrap();
    assert_eq!(quantize(&cut, &["--scheme", "m"]).code, Some(2), "a finished file without a journal is not ours");
}

#[test]
fn a_refused_run_leaves_the_model_that_is_there() {
    let (_keep, out) = place();
    report(&out, &["--scheme", "l"]);
    let before = fs::read(out.join("config.json")).unwrap();
    for args in [&["--calibrate", "no-such-file.txt"][..], &["--group", "48"]] {
        let run = quantize(&out, &[&["--scheme", "m", "--force"], args].concat());
        assert_eq!(run.code, Some(2), "{args:?}");
        assert_eq!(fs::read(out.join("config.json")).unwrap(), before, "{args:?}");
    }
}

#[test]
fn settings_that_no_engine_reads_are_sentences() {
    let (_keep, out) = place();
    for (args, words) in [
        (&["--scheme", "m", "--hadamard", "16"][..], "blocks of 16, expected 32, or 0 for none"),
        (&["--scheme", "l", "--group", "48"], "48 inputs, expected 32, 64 or 128"),
        (&["--scheme", "l", "--eight-bit", "down_proj"], "--eight-bit has no effect"),
        (&["--scheme", "q8", "--hadamard", "32"], "scheme q8 has no Hadamard transform"),
    ] {
        let run = quantize(&out, args);
        assert_eq!(run.code, Some(2));
        assert!(run.stderr.contains(words), "{}", run.stderr);
    }
    assert!(!out.exists());
}
