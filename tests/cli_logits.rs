//! `straw logits` against the recorded logits of the fixture, both engines, both checkpoint layouts; and `straw quantize`
//! against its own definition.

use cross_tests::{command, finish, fixture};
use half::bf16;
use safetensors::{Dtype, SafeTensors};
use std::{fs, path::Path};

/// The fixture's figures are f64; the file holds f32.
const REFERENCE: f64 = 1e-6;
/// The fixture's own tolerance for f32 engines.
const FAST: f64 = 1e-3;

fn floats(file: &[u8], name: &str) -> Vec<f64> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let view = tensors.tensor(name).unwrap();
    match view.dtype() {
        Dtype::F32 => view.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        Dtype::F64 => view.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        other => panic!("{name} is {other:?}"),
    }
}

fn joined(ids: &serde_json::Value) -> String {
    let ids: Vec<i64> = serde_json::from_value(ids.clone()).unwrap();
    ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
}

fn logits(model: &Path, engine: &str, args: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("logits.safetensors");
    let run = finish(command().args(["logits", "--engine", engine, "--model"]).arg(model).arg("--out").arg(&out).args(args));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    fs::read(out).unwrap()
}

/// Largest difference, relative above 1: f32 rounding grows with the number.
fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{what} [{i}]: {a}, expected {b}");
    }
}

#[test]
fn recorded_logits_are_reproduced_by_both_engines_in_both_layouts() {
    let dir = fixture("qwen35-tiny-a");
    let recorded: serde_json::Value = serde_json::from_str(&fs::read_to_string(dir.join("reference.json")).unwrap()).unwrap();
    let (prompt, tree_prompt) = (joined(&recorded["prompt64"]), joined(&recorded["tree_prompt32"]));
    let (parents, nodes) = (joined(&recorded["tree16"]["parent"]), joined(&recorded["tree16"]["token"]));
    let expected = floats(&fs::read(dir.join("ref_prompt64.safetensors")).unwrap(), "logits_f64");
    let tree_file = fs::read(dir.join("ref_tree16.safetensors")).unwrap();
    let (root, tree) = (floats(&tree_file, "root_logits_f64"), floats(&tree_file, "node_logits_f64"));
    for model in [dir.clone(), dir.join("flat")] {
        for (engine, tolerance) in [("reference", REFERENCE), ("fast", FAST)] {
            let what = format!("{engine} on {}", model.display());
            assert_close(&floats(&logits(&model, engine, &["--tokens", &prompt]), "logits"), &expected, tolerance, &what);
            let tree_args = ["--tokens", &tree_prompt, "--parents", &parents, "--tree-tokens", &nodes];
            let found = logits(&model, engine, &tree_args);
            let all = floats(&found, "logits");
            assert_close(&all[all.len() - root.len()..], &root, tolerance, &what);
            assert_close(&floats(&found, "tree_logits"), &tree, tolerance, &what);
        }
    }
}

#[test]
fn twin_siblings_have_the_same_logits() {
    let model = fixture("qwen35-tiny-a");
    let file = logits(&model, "fast", &["--tokens", "5,6,7", "--parents", "-1,-1,0,1", "--tree-tokens", "9,9,11,11"]);
    let rows = floats(&file, "tree_logits");
    let row = |i: usize| &rows[320 * i..320 * (i + 1)];
    assert_eq!((row(0), row(2)), (row(1), row(3)));
    assert_ne!(row(0), row(2));
}

/// The q8 checkpoint means exactly `scale * code`: a bf16 or f32 copy of those products gives the same bits.
#[test]
fn a_quantised_model_is_exactly_its_dequantised_weights() {
    let dir = tempfile::tempdir().unwrap();
    let (q8, plain) = (dir.path().join("q8"), dir.path().join("plain"));
    let from = fixture("qwen35-tiny-a");
    let run = finish(command().args(["quantize", "--scheme", "q8", "--json", "--model"]).arg(&from).arg("--out").arg(&q8));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let report: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["parts"][0]["left_out_tensors"], 1, "the vision tensor");
    assert!((0.003..0.01).contains(&report["parts"][0]["relative_rms_error"].as_f64().unwrap()), "{report}");

    let bytes = fs::read(q8.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut copies: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    let mut quantised = 0;
    for (name, view) in tensors.tensors() {
        if view.dtype() == Dtype::I8 {
            let scales = tensors.tensor(&format!("{name}.scale")).unwrap();
            let (columns, groups) = (view.shape()[1], view.shape()[1].div_ceil(64));
            assert_eq!((scales.dtype(), scales.shape()), (Dtype::BF16, &[view.shape()[0], groups][..]));
            let scale = |i: usize| {
                let at = 2 * (i / columns * groups + i % columns / 64);
                bf16::from_le_bytes(scales.data()[at..at + 2].try_into().unwrap()).to_f32()
            };
            let weight = |(i, &code): (usize, &u8)| (scale(i) * f32::from(code as i8)).to_le_bytes();
            assert!(view.data().iter().all(|&code| code as i8 != i8::MIN), "{name}");
            copies.push((name, Dtype::F32, view.shape().to_vec(), view.data().iter().enumerate().flat_map(weight).collect()));
            quantised += 1;
        } else if !name.ends_with(".weight.scale") {
            assert!(!name.contains("in_proj_qkv"), "{name} is quantised");
            copies.push((name, view.dtype(), view.shape().to_vec(), view.data().to_vec()));
        }
    }
    assert!(quantised > 20, "{quantised}");
    fs::create_dir(&plain).unwrap();
    let views = copies.iter().map(|(n, d, s, b)| (n, safetensors::tensor::TensorView::new(*d, s.clone(), b).unwrap()));
    safetensors::serialize_to_file(views, None, &plain.join("model.safetensors")).unwrap();
    fs::copy(from.join("config.json"), plain.join("config.json")).unwrap();
    for engine in ["reference", "fast"] {
        let tokens = ["--tokens", "154,38,266,70,228,176,85,63"];
        assert_eq!(logits(&q8, engine, &tokens), logits(&plain, engine, &tokens), "{engine}");
        let original = floats(&logits(&from, engine, &tokens), "logits");
        let found = floats(&logits(&q8, engine, &tokens), "logits");
        let squares = found.iter().zip(&original).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        let rms = (squares / found.len() as f64).sqrt();
        // Logits have a standard deviation of 3.
        assert!((1e-3..0.5).contains(&rms), "{engine}: {rms}");
    }
}
