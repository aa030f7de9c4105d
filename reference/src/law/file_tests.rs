//! Bad files are one sentence that names the case, the field, what was found and what was expected.

use super::*;

fn refusal(text: &str) -> String {
    let error = read_cases(text).expect_err(text).to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

fn chain(fields: &str) -> String {
    format!(r#"{{"chain":[{{"last":0,"p_weights":[[1,3],[2,2]],"q_weights":[[3,1],[1,1]]{fields}}}]}}"#)
}

fn tree(mode: &str, tree: &str) -> String {
    let tables = r#""last":0,"p_weights":[[1,3],[2,2]],"q_weights":[[3,0],[1,1]]"#;
    format!(r#"{{"tree_fixed":[{{{tables},"mode":"{mode}","tree":{tree}}}]}}"#)
}

#[test]
fn malformed_files_are_refused_with_a_sentence() {
    for (text, part) in [
        ("", "not a set of acceptance cases"),
        ("[]", "not a set of acceptance cases"),
        (r#"{"chains":[]}"#, "unknown field `chains`"),
        ("{}", "the file has no cases"),
        (&chain(""), "case chain 0: g is missing, expected the number of drafts"),
        (&chain(r#","g":0"#), "case chain 0: g is 0, expected 1 to 16"),
        (&chain(r#","g":2,"V":3"#), "case chain 0: V is 3, expected 2, the rows of p_weights"),
        (&chain(r#","g":1,"n_accepted_probs":[["1/0",0.5]]"#), r#"n_accepted_probs is "1/0", expected a fraction like 3/4"#),
        (&chain(r#","g":1,"laws":[]"#), "unknown field `laws`"),
        (&chain(r#","g":1"#).replace("[2,2]", "[0,0]"), "p_weights is all 0 in row 1, expected at least one positive weight"),
        (&chain(r#","g":1"#).replace("[2,2]", "[2]"), "p_weights is not square, expected 2 weights for every token"),
        (&chain(r#","g":1"#).replace("[2,2]", "[2,-2]"), "invalid value"),
        (&chain(r#","g":1"#).replace("\"last\":0", "\"last\":2"), "last is 2, expected a token below 2"),
        (&tree("greedy", "{}"), "unknown variant `greedy`"),
        (&tree("onehot", r#"{"t":1,"c":[]}"#), "tree is root 1, expected the last token 0"),
        (&tree("onehot", r#"{"t":0,"c":[{"t":2,"c":[]}]}"#), "tree is token 2, expected tokens below 2"),
        (&tree("onehot", r#"{"t":0,"c":[{"t":1,"c":[]},{"t":1,"c":[]}]}"#), "repeats token 1"),
        (&tree("without_replacement", r#"{"t":0,"c":[{"t":1,"c":[]}]}"#), "an impossible draft"),
        (r#"{"single":[{"p_weights":[1,2],"q_weights":[1]}]}"#, "case single 0: q_weights is not square"),
        (r#"{"single":[{"p_weights":[1,2],"q_weights":[1,1],"residual":[1]}]}"#, "residual is 1 entries, expected 2"),
    ] {
        let error = refusal(text);
        assert!(error.contains(part), "{error:?} for {text}, expected {part:?}");
    }
}

#[test]
fn cases_too_large_to_enumerate_are_refused_before_they_run() {
    let row = vec![1u32; 32];
    let table = serde_json::to_string(&vec![row; 32]).expect("numbers");
    let text = format!(r#"{{"chain":[{{"last":0,"g":9,"p_weights":{table},"q_weights":{table}}}]}}"#);
    assert!(refusal(&text).contains("case chain 0 would list about 1125899906842624 outcomes, at most 100000"));
    let wide = text.replace("chain", "tree_random").replace("\"g\":9", "\"widths\":[8]");
    assert!(refusal(&wide).contains("case tree_random 0 would list about"));
}

#[test]
fn figures_are_optional_and_deep_nesting_is_no_danger() {
    let bare = chain(r#","g":1"#);
    assert_eq!(read_cases(&bare).expect("well formed")[0].name(), "chain 0");
    let deep = format!("{}{}", r#"{"t":0,"c":["#.repeat(100_000), "]}".repeat(100_000));
    assert!(refusal(&tree("onehot", &deep)).contains("recursion limit"));
}
