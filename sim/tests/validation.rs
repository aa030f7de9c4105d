//! docs/validation.md is what the simulator computes today, and it is evidence: most rows hold, and those that do not are
//! the ones the document explains.

#[path = "../examples/validation/article.rs"]
mod article;
#[path = "../examples/validation/literature.rs"]
mod literature;
#[path = "../examples/validation/table.rs"]
mod table;

use table::Kind;

#[test]
fn the_document_is_current() {
    let (mut sections, mut findings) = (article::sections(), article::findings());
    sections.extend(literature::sections());
    findings.extend(literature::findings());
    let committed = include_str!("../../docs/validation.md");
    let current = table::render(&sections, &findings);
    for (i, (a, b)) in committed.lines().zip(current.lines()).enumerate() {
        assert_eq!(a, b, "line {} (run: cargo run -p sim --example validation > docs/validation.md)", i + 1);
    }
    assert_eq!(committed.len(), current.len());
}

/// Bounds were set per section; these counts change only when a figure or the library changes.
#[test]
fn published_rows_are_reproduced_and_the_misses_are_the_known_ones() {
    let rows: Vec<table::Row> = article::sections().into_iter().chain(literature::sections()).flat_map(|s| s.rows).collect();
    let evidence: Vec<&table::Row> = rows.iter().filter(|r| r.kind != Kind::Fitted).collect();
    let off: Vec<&str> = evidence.iter().filter(|r| !r.holds()).map(|r| r.what.as_str()).collect();
    assert_eq!(off, KNOWN_MISSES);
    assert!(evidence.len() >= 40, "{}", evidence.len());
}

/// A parameter may be fitted on one row only.
#[test]
fn nothing_is_fitted_twice() {
    let rows = article::sections().into_iter().chain(literature::sections()).flat_map(|s| s.rows);
    let mut fitted: Vec<String> = rows.filter(|r| r.kind == Kind::Fitted).map(|r| r.fitted).collect();
    let count = fitted.len();
    fitted.sort();
    fitted.dedup();
    assert_eq!(fitted.len(), count);
}

const KNOWN_MISSES: &[&str] = &[
    "llama.cpp at the readable bandwidth, tok/s",
    "Qwen3.5 9B, base M5, llama.cpp with 3 drafts, tok/s",
    "Japanese prose, tok/s (63.4 to 66.7)",
    "round at budget 16, plain passes (1.9 to 2.1), roofline alone",
    "ceiling as the article counts it, tok/s",
    "Qwen3-8B T 0 MT-Bench, speedup",
    "Qwen3-4B T 0 MT-Bench, speedup",
    "Qwen3-8B T 1 LCB, speedup",
    "Qwen3-8B T 1 MT-Bench, speedup",
    "Qwen3-4B T 1 MT-Bench, speedup",
    "Vicuna-13B T 0 CNN/DM, speedup",
    "Qwen3-8B, H100, 127 nodes, set 5, speedup",
    "block 12, largest tau that blocks 6 and 8 allow",
    "m5-pro, Llama-2-7B Q4_0, tok/s",
    "m5-max, Llama-2-7B Q4_0, tok/s",
];
