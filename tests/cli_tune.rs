//! `straw tune`: advice, files, a policy that decoding follows without changing a bit, and a report that draws itself.

use cross_tests::{command, finish, workspace};
use serde_json::Value;
use sim::{AcceptanceModel, AcceptanceSpec, ShapeKind, SyntheticTrace};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn law(spec: &str) -> AcceptanceModel {
    match spec.parse().unwrap() {
        AcceptanceSpec::Model(model) => model,
        AcceptanceSpec::Trace(_) => panic!("{spec} is a law"),
    }
}

/// A cost file in which a row costs a tenth of a plain pass.
fn cost(dir: &Path) -> PathBuf {
    let points: Vec<(usize, f64)> = (1..=33).map(|n| (n, 1e-3 + 1e-4 * (n as f64 - 1.0))).collect();
    let json = serde_json::json!({"verify": {"table": {"name": "made up", "points": points}}});
    let path = dir.join("cost.json");
    fs::write(&path, json.to_string()).unwrap();
    path
}

fn trace(dir: &Path, spec: &str, prompts: usize, tokens: usize) -> PathBuf {
    let law = law(spec);
    let shape = ShapeKind::BestFirst.grow(&law, 32, 15).shape;
    let trace = SyntheticTrace { model: &law, shape: &shape, prompts, tokens, dense: true, seed: 8 }.draw().unwrap();
    let path = dir.join("trace.jsonl");
    trace.write(fs::File::create(&path).unwrap()).unwrap();
    path
}

#[test]
fn the_advice_is_the_closed_forms_best_and_every_budget_is_in_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let run = finish(
        command()
            .args(["tune", "--json", "--acceptance", "easy=constant:0.8", "--shape", "chain", "--cost"])
            .arg(cost(dir.path()))
            .arg("--out")
            .arg(&out),
    );
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    let speed = |n: i32| (0..=n).map(|i| f64::powi(0.8, i)).sum::<f64>() / (1.0 + 0.1 * f64::from(n));
    let best = (3..=32).map(speed).fold(1.0, f64::max);
    let advised = report["advice"][0]["budget"].as_i64().unwrap() as i32;
    assert!(speed(advised) > 0.98 * best, "{advised}");
    let csv = fs::read_to_string(out.join("curves.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 31, "a header, plain decoding and 3 to 32");
    let manifest: Value = serde_json::from_str(&fs::read_to_string(out.join("manifest.json")).unwrap()).unwrap();
    assert_eq!(manifest["cost"], "made up");
}

#[test]
fn noisy_data_is_refused_with_the_number_of_missing_prompts() {
    let dir = tempfile::tempdir().unwrap();
    let (cost, trace) = (cost(dir.path()), trace(dir.path(), "beta-prompt:0.6,2", 6, 60));
    let run =
        finish(command().args(["tune", "--cost"]).arg(cost).arg("--trace").arg(trace).arg("--out").arg(dir.path().join("out")));
    assert_eq!(run.code, Some(2), "{}", run.stdout);
    assert!(run.stderr.contains("6 prompts give") && run.stderr.contains("more prompts"), "{}", run.stderr);
}

/// Recorded on the embedded model, tuned, obeyed: and nobody can tell.
#[test]
fn a_tuned_policy_is_followed_and_changes_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let set = dir.path().join("prompts.jsonl");
    let names = ["Tom", "Ann", "Ben", "Eva", "Max", "Lea"];
    let line = |(i, name): (usize, &&str)| {
        let prompt = format!("{name} has {} apples and buys 7 more. How many apples does {name} have now?", 10 + i);
        serde_json::json!({"id": name, "workload": "math", "prompt": prompt}).to_string() + "\n"
    };
    fs::write(&set, names.iter().enumerate().map(line).collect::<String>()).unwrap();
    let (trace, policy) = (dir.path().join("t.jsonl"), dir.path().join("policy.json"));
    let recorded = finish(
        command().args(["trace", "--drafter", "mtp", "--max-tokens", "24", "--prompts"]).arg(set).arg("--out").arg(&trace),
    );
    assert_eq!(recorded.code, Some(0), "{}", recorded.stderr);
    let tuned = finish(
        command()
            .args(["tune", "--json", "--max-noise", "0.5", "--cost"])
            .arg(cost(dir.path()))
            .arg("--trace")
            .arg(&trace)
            .arg("--policy")
            .arg(&policy)
            .arg("--out")
            .arg(dir.path().join("out")),
    );
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let generate = |args: &[&str]| -> Value {
        let message = "Tom has 12 apples and buys 7 more. How many apples does Tom have now?";
        let run =
            finish(command().args(["generate", "--json", "--drafter", "mtp", "-m", message, "--max-tokens", "24"]).args(args));
        assert_eq!(run.code, Some(0), "{args:?}: {}", run.stderr);
        serde_json::from_str(&run.stdout).unwrap()
    };
    let file = policy.to_str().unwrap();
    let (plain, auto) = (generate(&["--budget", "0"]), generate(&["--budget", "auto", "--policy", file]));
    assert_eq!((&plain["token_ids"], &plain["logprobs"]), (&auto["token_ids"], &auto["logprobs"]));
    assert!(auto["drafted"].as_u64().unwrap() > 0 && auto["passes"].as_u64() < plain["passes"].as_u64(), "{auto}");
    for (args, part) in [
        (["--drafter", "mtp", "--budget", "8", "--policy", file], "--policy without --budget auto changes nothing"),
        (["--drafter", "weaver", "--budget", "auto", "--policy", file], "was tuned for the drafter mtp, not weaver"),
    ] {
        let run = finish(command().args(["generate", "-m", "x"]).args(args));
        assert!(run.code == Some(2) && run.stderr.contains(part), "{}", run.stderr);
    }
}

/// The browser, or `None` with a plain word about it. `STRAW_NEEDS_CHROMIUM` makes its absence a failure; .ci/run sets it.
fn chromium() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()));
    if found.is_none() {
        assert!(std::env::var_os("STRAW_NEEDS_CHROMIUM").is_none(), "no chromium here, but STRAW_NEEDS_CHROMIUM is set");
        eprintln!("NOT CHECKED: no chromium, chromium-browser or google-chrome on this machine, so nobody looked at the report");
    }
    found
}

#[test]
fn the_report_draws_its_charts_without_a_network() {
    let dir = tempfile::tempdir().unwrap();
    let (cost, trace, out) = (cost(dir.path()), trace(dir.path(), "constant:0.7", 12, 80), dir.path().join("out"));
    let tuned = finish(
        command().args(["tune", "--max-noise", "0.5", "--cost"]).arg(cost).arg("--trace").arg(trace).arg("--out").arg(&out),
    );
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(!page.contains("{{DATA"), "a place of the template was left open");
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"), "the page asks for the network");
    let Some(browser) = chromium() else { return };
    let profile = dir.path().join("profile");
    let open = |args: &[&str]| {
        let url = format!("file://{}", out.join("report.html").display());
        let mut browse = Command::new(browser);
        browse.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=20000"]);
        browse.arg(format!("--user-data-dir={}", profile.display())).args(args).arg(url).current_dir(workspace());
        browse.output().expect("chromium starts")
    };
    let dom = String::from_utf8_lossy(&open(&["--dump-dom"]).stdout).into_owned();
    let said = dom.split("id=\"failed\">").nth(1).and_then(|rest| rest.split('<').next()).unwrap_or("nothing");
    assert!(dom.contains("data-drawn=\"curves heat tree\""), "the charts were not drawn; the page says {said:?}");
    assert!(dom.matches("<svg").count() >= 3);
    let picture = dir.path().join("page.png");
    open(&["--window-size=1200,2400", &format!("--screenshot={}", picture.display())]);
    let png = fs::read(&picture).expect("chromium took a screenshot");
    // An empty page of this size packs into 10 kB.
    assert!(png.starts_with(b"\x89PNG") && png.len() > 40_000, "{} bytes", png.len());
}
