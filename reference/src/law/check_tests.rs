//! The fixture's cases within 1e-12 and exactly, verdicts per rule, and files with wrong figures caught.

use super::super::{built_in_cases, read_cases};
use super::*;

fn fixture() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/acceptance/acceptance.json");
    std::fs::read_to_string(path).expect("the fixture is part of the repository")
}

fn assert_verdicts(report: &LawReport) {
    for rule in &report.rules {
        assert_eq!(rule.lossless, rule.claims_lossless, "{rule:?}");
        assert_eq!(rule.max_abs_error <= TOLERANCE, rule.claims_lossless, "{rule:?}");
    }
    let lossy: Vec<&str> = report.rules.iter().filter(|r| !r.lossless).map(|r| r.rule.as_str()).collect();
    assert_eq!(lossy, ["rejection without replacement on one fixed tree", "typical acceptance"]);
    assert_eq!(report.rules.len(), CLAIMS.len());
    assert!(!report.failed());
}

#[test]
fn built_in_cases_are_lossless_exactly_where_claimed() {
    let cases = built_in_cases();
    let mut heard = Vec::new();
    let report = check(&cases, &mut |done| heard.push(done));
    assert_verdicts(&report);
    assert_eq!(heard, (1..=cases.len()).collect::<Vec<_>>());
    assert_eq!(report.cases, cases.len());
}

#[test]
fn the_fixture_is_met_within_1e_12_in_floats_and_exactly_in_rationals() {
    let cases = read_cases(&fixture()).expect("the fixture is valid");
    assert_eq!(cases.len(), 30 + 7 + 12 + 5);
    let report = check(&cases, &mut |_| {});
    assert_verdicts(&report);
    assert!(report.arithmetic_exact && report.arithmetic_max_abs_error <= TOLERANCE, "{report:?}");
}

const CHAIN: &str = r#"{"chain":[{"g":1,"last":0,"p_weights":[[1,3],[2,2]],"q_weights":[[3,1],[1,1]],
    "n_accepted_probs":[["1/2",0.5],["1/2",0.5]],"law":[[[0,0],0.0625],[[0,1],0.1875],[[1],0.5],[[1,0],0.125],[[1,1],0.125]]}]}"#;

#[test]
fn a_wrong_figure_fails_the_check_whether_float_or_fraction() {
    let failed = |text: &str| check(&read_cases(text).expect("well formed"), &mut |_| {}).failed();
    assert!(!failed(CHAIN));
    assert!(failed(&CHAIN.replace("0.1875", "0.1876")));
    assert!(failed(&CHAIN.replace("[[[0,0],0.0625],", "[")));
    assert!(failed(&CHAIN.replace("1/2\",0.5],", "1/3\",0.5],")));
    assert!(failed(&CHAIN.replace("1/2\",0.5],", "1/2\",0.4],")));
}

#[test]
fn a_lossless_claim_that_fails_and_a_nan_fail_the_check() {
    let fine = check(&read_cases(CHAIN).expect("well formed"), &mut |_| {});
    let mut broken = fine.clone();
    broken.rules[1].lossless = false;
    assert!(broken.rules[1].claims_lossless && broken.failed());
    assert!(LawReport { arithmetic_max_abs_error: f64::NAN, ..fine }.failed());
}

#[test]
fn the_report_names_its_fields_in_json() {
    let report = check(&read_cases(CHAIN).expect("well formed"), &mut |_| {});
    let json = serde_json::to_value(&report).expect("plain data");
    assert_eq!(json["cases"], 1);
    assert_eq!(json["rules"][0]["rule"], "greedy");
    for field in ["claims_lossless", "max_abs_error", "lossless", "cases"] {
        assert!(!json["rules"][0][field].is_null(), "{field}");
    }
}
