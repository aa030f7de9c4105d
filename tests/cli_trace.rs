//! `straw trace`: a recording at budget 32 knows what every smaller budget will count, and says nothing that is not so.

use cross_tests::{command, finish, workspace};
use serde_json::Value;
use sim::{Replay, ShapeKind, Trace};
use specdec::Budget;
use std::{fs, path::Path};

const PROMPT: &str = "Tom has 12 apples and buys 7 more. How many apples does Tom have now?";

fn prompts(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("prompts.jsonl");
    let line =
        |id: &str, text: &str| serde_json::json!({"id": id, "workload": "math", "prompt": text, "source": "here"}).to_string();
    fs::write(&path, line("one", PROMPT) + "\n" + &line("two", "Count the pears.") + "\n").unwrap();
    path
}

fn record(dir: &Path, name: &str, args: &[&str]) -> std::path::PathBuf {
    let out = dir.join(name);
    let run = finish(command().arg("trace").arg("--prompts").arg(prompts(dir)).arg("--out").arg(&out).args(args));
    assert_eq!(run.code, Some(0), "{args:?}: {}", run.stderr);
    out
}

fn counted(args: &[&str]) -> Value {
    let run = finish(command().args(["generate", "--json", "-m", PROMPT, "--max-tokens", "16"]).args(args));
    assert_eq!(run.code, Some(0), "{args:?}: {}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// Greedy and sampled, chains, best-first and Weaver: to the last digit, not within a tolerance.
#[test]
fn a_dense_trace_at_32_predicts_the_counted_tokens_per_pass_of_every_smaller_budget() {
    let dir = tempfile::tempdir().unwrap();
    for (drafter, kind, sampling) in [
        ("mtp", ShapeKind::Chain, &["--temperature", "0"][..]),
        ("dflash-tree", ShapeKind::BestFirst, &["--temperature", "0"]),
        ("weaver", ShapeKind::BestFirst, &["--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--seed", "5"]),
    ] {
        let name = format!("{drafter}.jsonl");
        let out = record(dir.path(), &name, &[&["--drafter", drafter, "--max-tokens", "16"], sampling].concat());
        let trace = Trace::read(fs::read(out).unwrap().as_slice()).unwrap();
        let one = trace.only(|p| p.id == "one").unwrap();
        let replay = Replay::new(&one, &kind, 32).unwrap();
        for budget in [3, 8, 32] {
            let number = budget.to_string();
            let args = [&["--drafter", drafter, "--budget", &number][..], sampling].concat();
            let count = counted(&args)["tokens_per_forward_pass"].as_f64().unwrap();
            let predicted = replay.walked_tau(Budget::new(budget).unwrap()).unwrap();
            assert!((predicted - count).abs() < 1e-12, "{drafter} {budget} {sampling:?}: {predicted} counted {count}");
        }
    }
}

#[test]
fn visited_roots_are_the_rounds_of_a_generation() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--drafter", "weaver", "--budget", "8", "--roots", "visited", "--max-tokens", "16"];
    let trace = Trace::read(fs::read(record(dir.path(), "v.jsonl", &args)).unwrap().as_slice()).unwrap();
    let generation = counted(&["--drafter", "weaver", "--budget", "8"]);
    let rounds = trace.by_prompt()[0].clone();
    assert_eq!(rounds.len() as u64, generation["passes"].as_u64().unwrap());
    let accepted: usize = rounds.iter().map(|r| r.accepted.len()).sum();
    assert_eq!(accepted as u64, generation["accepted"].as_u64().unwrap());
    assert!(rounds.iter().all(|r| r.nodes.len() <= 8));
}

#[test]
fn a_recording_is_compressed_resumed_and_left_alone_when_whole() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--drafter", "mtp", "--max-tokens", "8", "--json"];
    let whole = record(dir.path(), "t.jsonl.zst", &args);
    let bytes = fs::read(&whole).unwrap();
    assert!(bytes.starts_with(&[0x28, 0xB5, 0x2F, 0xFD]), "no Zstandard frame");
    fs::rename(&whole, dir.path().join("t.jsonl.zst.partial")).unwrap();
    record(dir.path(), "t.jsonl.zst", &args);
    assert!(fs::read(&whole).unwrap() == bytes, "resuming changed the recording");
    let again = finish(command().args(["trace", "--prompts"]).arg(prompts(dir.path())).arg("--out").arg(&whole).args(args));
    let report: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!((report["resumed"].as_u64(), report["rounds"].as_u64()), (Some(2), Some(0)));
    let other = finish(
        command().args(["trace", "--prompts"]).arg(prompts(dir.path())).arg("--out").arg(&whole).args(["--drafter", "ngram"]),
    );
    assert_eq!(other.code, Some(2));
    assert!(other.stderr.contains("is another recording (delete it, or choose another --out)"), "{}", other.stderr);
}

#[test]
fn bad_recordings_are_refused_with_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let file = prompts(dir.path());
    let refused = |args: &[&str]| {
        let run =
            finish(command().args(["trace", "--prompts"]).arg(&file).arg("--out").arg(dir.path().join("x.jsonl")).args(args));
        assert_eq!(run.code, Some(2), "{args:?}: {}", run.stdout);
        run.stderr
    };
    assert!(refused(&["--drafter", "off"]).contains("a trace without drafts says nothing"));
    assert!(refused(&["--drafter", "mtp", "--budget", "2"]).contains("draft budget 2 is outside 3..=32"));
    assert!(
        refused(&["--drafter", "mtp", "--workload", "poems"]).contains("no prompt of workload \"poems\", expected one of math")
    );
    assert!(refused(&["--drafter", "mtp", "--roots", "every:0"]).contains("expected dense, visited or every:K"));
    let nothing = workspace().join("Cargo.toml");
    let run = finish(command().args(["trace", "--drafter", "mtp", "--out", "x", "--prompts"]).arg(nothing));
    assert!(run.code == Some(2) && run.stderr.contains("line 1"), "{}", run.stderr);
}
