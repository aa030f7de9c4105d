//! `straw simulate`: closed forms through the command, costs by file and by name, refusals in one sentence.

use cross_tests::{command, finish};
use serde_json::Value;
use std::fs;

fn simulate(args: &[&str]) -> Value {
    let run = finish(command().args(["simulate", "--json"]).args(args));
    assert_eq!(run.code, Some(0), "{args:?}: {}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

#[test]
fn a_chain_of_a_constant_rate_is_the_geometric_sum() {
    for (alpha, n) in [(0.8, 8), (0.6, 3), (0.9, 32)] {
        let spec = format!("constant:{alpha}");
        let report = simulate(&["--acceptance", &spec, "--shape", "chain", "--budget", &n.to_string(), "--cost", "m5-max"]);
        let exact: f64 = (0..=n).map(|i| f64::powi(alpha, i)).sum();
        let (low, high) = (report["tau_ci"]["low"].as_f64().unwrap(), report["tau_ci"]["high"].as_f64().unwrap());
        let tau = report["tau"].as_f64().unwrap();
        // A 95 % interval misses one time in twenty; twice its width does not.
        assert!((tau - exact).abs() < 2.0 * (high - low) && high - low < 0.1 * exact, "{alpha} {n}: {tau} {exact} {report}");
        assert!(report["tokens_per_s"].as_f64().unwrap() > 0.0 && report["rounds"].as_f64().unwrap() > 1000.0);
    }
}

#[test]
fn a_cost_file_prices_rounds_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cost.json");
    let cost = r#"{"verify":{"table":{"name":"made","points":[[1,0.01],[9,0.02]],"steps":[]}},
                   "drafters":{"mtp":{"by_nodes":[[3,0.003],[8,0.008]]}},"round_s":0.002}"#;
    fs::write(&file, cost).unwrap();
    let file = file.to_str().unwrap();
    let base = ["--acceptance", "constant:0.8", "--shape", "chain", "--budget", "8", "--cost", file];
    let report = simulate(&[&base[..], &["--drafter", "mtp"]].concat());
    let speed = report["tau"].as_f64().unwrap() / (0.02 + 0.008 + 0.002);
    assert!((report["tokens_per_s"].as_f64().unwrap() / speed - 1.0).abs() < 1e-9, "{report}");
    assert!((report["plain_tokens_per_s"].as_f64().unwrap() - 100.0).abs() < 1e-6);
    let unknown = finish(command().arg("simulate").args(base).args(["--drafter", "weaver"]));
    assert!(unknown.code == Some(2) && unknown.stderr.contains("the file has mtp"), "{}", unknown.stderr);
    let wide = finish(command().args(["simulate", "--acceptance", "constant:0.8", "--budget", "16", "--cost", file]));
    assert!(wide.code == Some(2) && wide.stderr.contains("ends at 9"), "{}", wide.stderr);
}

#[test]
fn unknown_costs_and_settings_without_effect_are_refused() {
    let refused = |args: &[&str]| {
        let run = finish(command().args(["simulate", "--acceptance", "constant:0.8"]).args(args));
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{args:?}");
        run.stderr
    };
    let names = refused(&["--cost", "m9"]);
    assert!(names.contains("m5-max") && names.contains("h200") && names.contains("mlxcel-27b-m5-max"), "{names}");
    assert!(refused(&["--cost", "m5", "--workload", "code"]).contains("--workload without a trace changes nothing"));
    assert!(refused(&["--cost", "m5", "--fit"]).contains("--fit needs a trace"));
    assert!(refused(&["--cost", "m5", "--efficiency", "0"]).contains("the efficiency is 0"));
}
