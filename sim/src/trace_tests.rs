//! A round trip, and one broken file per rule of the schema.

use super::*;

const HEADER: &str = r#"{"schema":"straw-trace","version":1,"model":{"name":"t","hash":"a1"},"drafter":{"name":"d","hash":"b2"},"sampling":{"temperature":1.0},"tree_noise":"independent","prompts":[{"id":"p0","workload":"code"},{"id":"p1","workload":"chat"}]}"#;
const ROUND: &str = r#"{"prompt":"p0","position":7,"context":7,"nodes":[{"parent":0,"depth":1,"rank":0,"draft_log_prob":-0.1,"target_log_prob":-0.2,"target_rank":0},{"parent":0,"depth":1,"rank":1,"draft_log_prob":-2.0,"target_log_prob":null,"target_rank":5},{"parent":1,"depth":2,"rank":0,"draft_log_prob":-0.5,"target_log_prob":-0.7,"target_rank":0}],"accepted":[1,3]}"#;

fn read(header: &str, rounds: &[&str]) -> Result<Trace, SimError> {
    Trace::read(format!("{header}\n{}\n", rounds.join("\n")).as_bytes())
}

#[test]
fn a_trace_round_trips() {
    let trace = read(HEADER, &[ROUND]).unwrap();
    let mut bytes = Vec::new();
    trace.write(&mut bytes).unwrap();
    assert_eq!(Trace::read(&bytes[..]).unwrap(), trace);
    assert_eq!(trace.by_prompt().iter().map(Vec::len).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn a_workload_is_a_trace_of_its_own() {
    let other = ROUND.replace("p0", "p1");
    let trace = read(HEADER, &[ROUND, &other]).unwrap();
    assert_eq!(trace.workloads().into_iter().collect::<Vec<_>>(), ["chat", "code"]);
    assert_eq!(trace.only(|p| p.workload == "chat").unwrap().rounds(), &trace.rounds()[1..]);
    assert!(trace.only(|_| false).is_err());
}

#[test]
fn every_broken_rule_has_its_sentence_and_line() {
    let greedy = HEADER.replace("\"temperature\":1.0", "\"temperature\":0.0");
    let dense = HEADER.replace("\"prompts\"", "\"roots\":\"dense\",\"prompts\"");
    let late = ROUND.replace("\"position\":7", "\"position\":9");
    let cases: Vec<(&str, &str, Vec<String>, &str)> = vec![
        ("", "empty", vec![], "trace line 1: "),
        (HEADER, "no rounds", vec![], "trace line 2: no round follows"),
        (HEADER, "schema", vec!["{}".into()], "trace line 2: missing field"),
        (HEADER, "prompt", vec![ROUND.replace("p0", "p9")], "\"p9\" is not in the header"),
        (HEADER, "order", vec![late.clone(), ROUND.into()], "trace line 3: position 7"),
        (&dense, "gap", vec![ROUND.into(), late], "leaves a gap"),
        (HEADER, "context", vec![ROUND.replace("\"context\":7", "\"context\":8")], "context 8 is longer"),
        (HEADER, "parent", vec![ROUND.replace("\"parent\":1", "\"parent\":3")], "row 3 has parent 3"),
        (HEADER, "depth", vec![ROUND.replace("\"depth\":2", "\"depth\":3")], "row 3 has depth 3, expected 2"),
        (HEADER, "positive", vec![ROUND.replace("-0.5", "0.5")], "row 3 has draft log-probability"),
        (HEADER, "twin", vec![ROUND.replace("\"rank\":1", "\"rank\":0")], "row 2 has the rank"),
        (HEADER, "mass", vec![ROUND.replace("null", "-0.3")], "sum to 1.559549"),
        (HEADER, "path", vec![ROUND.replace("[1,3]", "[2,3]")], "accepted row 2 is impossible"),
        (HEADER, "jump", vec![ROUND.replace("[1,3]", "[3]")], "accepted row 3 is not a child of row 0"),
        (HEADER, "outside", vec![ROUND.replace("[1,3]", "[9]")], "accepted row 9 is not a child"),
        (&greedy, "stops early", vec![ROUND.replace("[1,3]", "[1]")], "stops at row 1"),
        (&greedy, "not first", vec![ROUND.replace("[1,3]", "[2]")], "not the target's first choice"),
        (HEADER, "unknown field", vec![ROUND.replace("\"accepted\"", "\"extra\":1,\"accepted\"")], "unknown field"),
        (HEADER, "cut", vec![ROUND[..60].into()], "trace line 2: EOF"),
    ];
    for (header, name, rounds, part) in cases {
        let rounds: Vec<&str> = rounds.iter().map(String::as_str).collect();
        let error = read(header, &rounds).unwrap_err().to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
    for (from, to, part) in [
        ("straw-trace", "other", "schema is \"other\""),
        ("\"version\":1", "\"version\":2", "schema version is 2, expected 1"),
        ("\"p1\"", "\"p0\"", "listed twice"),
    ] {
        let error = read(&HEADER.replace(from, to), &[ROUND]).unwrap_err().to_string();
        assert!(error.starts_with("trace line 1: ") && error.contains(part), "{error}");
    }
}
