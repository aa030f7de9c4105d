//! Bad input: one sentence on stderr, nothing on stdout, exit code 2, whichever engine was asked.

use cross_tests::{Run, command, finish, fixture};
use half::bf16;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

const ENGINES: [&str; 2] = ["reference", "fast"];

/// A copy of the fixture model to be damaged.
fn copy() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixture("qwen35-tiny-a").join(name), dir.path().join(name)).unwrap();
    }
    let path = dir.path().to_owned();
    (dir, path)
}

fn generate(model: &Path, engine: &str) -> Run {
    finish(
        command().args(["generate", "--raw", "-m", "the thing", "--max-tokens", "2", "--engine", engine, "--model"]).arg(model),
    )
}

/// Checks the manners of a refusal and returns its sentence with the folder's name replaced.
fn sentence(run: &Run, dir: &Path) -> String {
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{run:?}");
    let line = run.stderr.strip_prefix("straw: ").unwrap_or_else(|| panic!("{run:?}")).trim_end();
    assert!(!line.contains('\n') && !line.contains("panicked") && !line.ends_with('.'), "{line}");
    line.replace(&dir.display().to_string(), "DIR")
}

fn header(bytes: &[u8]) -> (usize, serde_json::Value) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (8 + length, serde_json::from_slice(&bytes[8..8 + length]).unwrap())
}

fn with_header(header: &serde_json::Value, data: &[u8]) -> Vec<u8> {
    let text = header.to_string();
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), data].concat()
}

#[test]
fn damaged_weights_are_refused() {
    let whole = fs::read(fixture("qwen35-tiny-a/model.safetensors")).unwrap();
    let (data, fields) = header(&whole);
    let begin = |name: &str| data + fields[name]["data_offsets"][0].as_u64().unwrap() as usize;
    let norm = "model.language_model.norm.weight";
    let mut forged = whole.clone();
    forged[..8].copy_from_slice(&(1u64 << 63).to_le_bytes());
    let mut long = whole.clone();
    long[..8].copy_from_slice(&(whole.len() as u64 + 1).to_le_bytes());
    let mut nan = whole.clone();
    nan[begin(norm) + 6..begin(norm) + 8].copy_from_slice(&bf16::NAN.to_le_bytes());
    let mut shape = fields.clone();
    shape["lm_head.weight"]["shape"] = serde_json::json!([64, 320]);
    let mut square = fields.clone();
    square[norm]["shape"] = serde_json::json!([8, 8]);
    let mut missing = fields.clone();
    let moved = missing.as_object_mut().unwrap().remove(norm).unwrap();
    missing["something.else"] = moved;
    let mut kind = fields.clone();
    kind[norm]["dtype"] = "Q3".into();
    for (name, bytes, words) in [
        ("truncated", whole[..whole.len() - 100].to_vec(), &["model.safetensors"][..]),
        ("empty", Vec::new(), &["model.safetensors"]),
        ("header length 2^63", forged, &["model.safetensors", "header"]),
        ("header longer than the file", long, &["model.safetensors", "header"]),
        ("nan", nan, &[norm, "NaN"]),
        ("wrong shape", with_header(&shape, &whole[data..]), &["lm_head.weight", "[64, 320]", "[320, 64]"]),
        ("wrong shape of as many numbers", with_header(&square, &whole[data..]), &[norm, "[8, 8]", "[64]"]),
        ("missing tensor", with_header(&missing, &whole[data..]), &[norm]),
        ("unknown number type", with_header(&kind, &whole[data..]), &["model.safetensors", "Q3"]),
    ] {
        let (_keep, dir) = copy();
        fs::write(dir.join("model.safetensors"), &bytes).unwrap();
        for engine in ENGINES {
            let text = sentence(&generate(&dir, engine), &dir);
            for word in words {
                assert!(text.contains(word), "{name}, {engine}: {text}");
            }
        }
    }
}

#[test]
fn missing_files_are_named() {
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let (_keep, dir) = copy();
        fs::remove_file(dir.join(name)).unwrap();
        for engine in ENGINES {
            assert!(sentence(&generate(&dir, engine), &dir).contains(name));
        }
    }
    let nowhere = Path::new("/nowhere/at/all");
    insta::assert_snapshot!(sentence(&generate(nowhere, "fast"), nowhere), @"DIR: no such folder (set --model)");
}

#[test]
fn unknown_architectures_are_named() {
    let (_keep, dir) = copy();
    let config = fs::read_to_string(dir.join("config.json")).unwrap();
    fs::write(dir.join("config.json"), config.replace("qwen3_5_text", "mamba9").replace("qwen3_5", "mamba9")).unwrap();
    for engine in ENGINES {
        assert!(sentence(&generate(&dir, engine), &dir).contains("mamba9"));
    }
    fs::write(dir.join("config.json"), "not json").unwrap();
    assert!(sentence(&generate(&dir, "fast"), &dir).contains("config.json"));
}

#[test]
fn settings_outside_their_range_are_sentences() {
    let dir = fixture("qwen35-tiny-a");
    let refused = |args: &[&str]| {
        sentence(&finish(command().args(["generate", "--raw", "-m", "the thing", "--model"]).arg(&dir).args(args)), &dir)
    };
    insta::assert_snapshot!(refused(&["--budget", "2"]), @"draft budget 2 is outside 3..=32 (0 turns drafting off; set --budget)");
    insta::assert_snapshot!(refused(&["--budget", "33"]), @"draft budget 33 is outside 3..=32 (0 turns drafting off; set --budget)");
    insta::assert_snapshot!(refused(&["--budget", "some"]), @r#"draft budget "some" is not a whole number (set --budget to 0 or 3..=32)"#);
    insta::assert_snapshot!(refused(&["--drafter", "eagle"]), @r#"drafter "eagle" is unknown, expected off, ngram, mtp, dflash, dflash-tree or weaver (set --drafter)"#);
    insta::assert_snapshot!(refused(&["--drafter", "weaver"]), @"the model has no weaver drafter, expected one of off, ngram, mtp (set --drafter)");
    insta::assert_snapshot!(refused(&["--drafter", "off", "--budget", "8"]), @"a draft budget without a drafter: the drafter is off (set --drafter, or --budget 0)");
    insta::assert_snapshot!(refused(&["--max-tokens", "0"]), @"the token cap is 0, expected at least 1 (set --max-tokens)");
    insta::assert_snapshot!(refused(&["--temperature", "-1"]), @"temperature is -1, expected 0 to 100 (0 is greedy) (set --temperature)");
    insta::assert_snapshot!(refused(&["--top-p", "0"]), @"top-p is 0, expected above 0 and at most 1 (set --top-p)");
    insta::assert_snapshot!(refused(&["--stop", ""]), @"a stop string is empty, expected at least one character (set --stop)");
    insta::assert_snapshot!(refused(&["--threads", "0"]), @"the number of threads is 0, expected at least 1 (set --threads)");
    insta::assert_snapshot!(refused(&["--threads", "2", "--engine", "reference"]), @"--threads has no effect on the reference engine, which has one thread (use --engine fast)");
    insta::assert_snapshot!(refused(&["--budget", "auto", "--engine", "reference"]), @"--budget auto needs the fast engine (use --engine fast)");
}

#[test]
fn empty_and_overlong_prompts_are_sentences() {
    let dir = fixture("qwen35-tiny-a");
    let prompt = |text: &str| sentence(&finish(command().args(["generate", "--raw", "-m", text, "--model"]).arg(&dir)), &dir);
    insta::assert_snapshot!(prompt(""), @"the prompt is empty, expected at least one token (give a text with -m)");
    let long = "x1".repeat(2500);
    insta::assert_snapshot!(prompt(&long), @"the prompt has 5000 tokens, expected fewer than the model's context of 4096 (shorten the prompt)");
}

#[test]
fn logits_of_impossible_requests_are_sentences() {
    let dir = fixture("qwen35-tiny-a");
    let out = tempfile::tempdir().unwrap();
    let refused = |args: &[&str]| {
        let run = finish(command().args(["logits", "--model"]).arg(&dir).arg("--out").arg(out.path().join("x")).args(args));
        sentence(&run, &dir)
    };
    insta::assert_snapshot!(refused(&["--tokens", "1,320"]), @"--tokens: token 1 has id 320, expected an id below the vocabulary size 320");
    insta::assert_snapshot!(refused(&["--tokens", "1", "--parents", "-1", "--tree-tokens", "999"]), @"--tree-tokens: token 0 has id 999, expected an id below the vocabulary size 320");
    insta::assert_snapshot!(refused(&["--tokens", "1", "--parents", "-1,1", "--tree-tokens", "5,6"]), @"--parents: node 1 has parent 1, expected -1 or an earlier node");
    insta::assert_snapshot!(refused(&["--tokens", "1", "--parents", "-2", "--tree-tokens", "5"]), @"--parents: node 0 has parent -2, expected -1 or an earlier node");
    insta::assert_snapshot!(refused(&["--tokens", "1", "--parents", "-1,0", "--tree-tokens", "5"]), @"--parents has 2 nodes and --tree-tokens 1, expected as many of each");
    assert!(fs::read_dir(out.path()).unwrap().next().is_none(), "a refused request leaves no file");
}

#[test]
fn quantize_refuses_what_it_cannot_convert_and_leaves_nothing() {
    let (_keep, dir) = copy();
    let out = tempfile::tempdir().unwrap();
    let to = out.path().join("q8");
    let quantize =
        |args: &[&str]| finish(command().args(["quantize", "--scheme", "q8", "--model"]).arg(&dir).arg("--out").args(args));
    let name = to.to_str().unwrap();
    assert!(sentence(&quantize(&[dir.to_str().unwrap()]), &dir).starts_with("--out is the model's own folder"));
    assert_eq!(quantize(&[name]).code, Some(0));
    insta::assert_snapshot!(sentence(&quantize(&[name]), &to), @"DIR/config.json exists already (give --force to overwrite)");
    assert_eq!(quantize(&[name, "--force"]).code, Some(0));
    let twice = finish(command().args(["quantize", "--scheme", "q8", "--model", name, "--out", &format!("{name}-2")]));
    assert!(sentence(&twice, &to).contains("the model is quantised already, expected an unquantised one"));

    let mut whole = fs::read(dir.join("model.safetensors")).unwrap();
    let (data, fields) = header(&whole);
    let head = data + fields["lm_head.weight"]["data_offsets"][0].as_u64().unwrap() as usize;
    whole[head + 2..head + 4].copy_from_slice(&bf16::INFINITY.to_le_bytes());
    fs::write(dir.join("model.safetensors"), whole).unwrap();
    let bad = out.path().join("bad");
    let text = sentence(&quantize(&[bad.to_str().unwrap()]), &dir);
    assert!(text.contains("lm_head.weight") && text.contains("inf") && text.contains("[0, 1]"), "{text}");
    assert!(!bad.exists(), "a failed conversion leaves nothing");
}
