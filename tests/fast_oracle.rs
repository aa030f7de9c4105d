//! The fast engine against the fixture's reference numbers and against the reference engine. Two f32 orders of summation
//! differ by rounding, so numbers have the tolerances of the fixture's README and tokens must be equal but for near ties.

use crate::fast_models::*;
use fast::{Engine, LoadOptions};
use reference::Reference;
use specdec::{DraftTree, DrafterKind, GenerateRequest, QuantScheme};
use std::ops::ControlFlow;

/// Largest absolute difference of logits whose standard deviation is about 3 (the fixture's README, fp32).
const LOGITS: f64 = 1e-3;
/// Largest absolute difference of states (the fixture's README, fp32).
const STATES: f64 = 3e-4;
/// Two tokens whose f64 logits are closer than this may change places in f32.
const TIE: f64 = 2e-3;

fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found.iter().zip(expected).map(|(&a, &b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
    assert!(found.iter().all(|x| x.is_finite()) && worst <= tolerance, "{what}: off by {worst:.2e}, allowed {tolerance:.0e}");
    println!("{what}: largest difference {worst:.2e}");
}

#[test]
fn logits_of_both_layouts_equal_the_fixture() {
    for folder in [fixture_folder(), fixture_folder().join("flat")] {
        let engine = Engine::load(&folder, &LoadOptions { threads: 1, ..Default::default() }).unwrap();
        let logits = engine.logits(&fixture_ids(&["prompt64"])).unwrap();
        assert_close(&logits, &fixture_tensor("ref_prompt64.safetensors", "logits_f64"), LOGITS, "prompt of 64");
        let logits = engine.logits(&fixture_ids(&["long200"])).unwrap();
        assert_close(&logits, &fixture_tensor("ref_long200.safetensors", "logits_f64_rounded_to_f32"), LOGITS, "prompt of 200");
    }
}

#[test]
fn states_equal_the_fixture() {
    let engine = fixture(1);
    for (ids, file, prefix) in
        [("prompt64", "ref_state_after_prompt64.safetensors", ""), ("long200", "ref_long200.safetensors", "state.")]
    {
        let mut session = engine.session_with_room(200);
        session.prefill(&fixture_ids(&[ids])).unwrap();
        for layer in 0..3 {
            let (state, tail) = session.delta_state(layer).unwrap();
            let name = format!("{prefix}layer{layer}.recurrent");
            assert_close(state, &fixture_tensor(file, &name), STATES, &name);
            let conv = fixture_tensor(file, &format!("{prefix}layer{layer}.conv"));
            // The file has [channels, 3], the engine [3, channels].
            let channels = conv.len() / 3;
            let transposed: Vec<f64> = (0..3).flat_map(|t| conv.iter().skip(t).step_by(3).copied()).collect();
            assert_eq!(tail.len(), 3 * channels);
            assert_close(tail, &transposed, STATES, &format!("{prefix}layer{layer}.conv"));
        }
    }
}

#[test]
fn a_tree_and_its_commits_equal_the_fixture() {
    let engine = fixture(1);
    let prompt = fixture_ids(&["tree_prompt32"]);
    let parents: Vec<i64> = serde_json::from_value(fixture_json()["tree16"]["parent"].clone()).unwrap();
    let tokens = fixture_ids(&["tree16", "token"]);
    let drafted: Vec<(usize, u32, f32)> = parents.iter().zip(&tokens).map(|(&p, &t)| ((p + 1) as usize, t, 0.0)).collect();
    let tree = DraftTree::new(prompt[31], &drafted).unwrap();
    let file = "ref_tree16.safetensors";
    let logits = engine.tree_logits(&prompt, &tree).unwrap();
    assert_close(&logits[..320], &fixture_tensor(file, "root_logits_f64"), LOGITS, "root");
    assert_close(&logits[320..], &fixture_tensor(file, "node_logits_f64"), LOGITS, "nodes");
    for commit in ["commit_full", "commit_partial"] {
        let nodes = fixture_ids(&["tree16", &format!("{commit}_nodes")]);
        let path: Vec<usize> = std::iter::once(0).chain(nodes.iter().map(|&n| n as usize + 1)).collect();
        let mut session = engine.session_with_room(64);
        session.prefill(&prompt[..31]).unwrap();
        session.verify(&tree).unwrap();
        session.commit(&path).unwrap();
        for layer in 0..3 {
            let name = format!("{commit}.layer{layer}.recurrent");
            assert_close(session.delta_state(layer).unwrap().0, &fixture_tensor(file, &name), STATES, &name);
        }
        let name = format!("{commit}.next_logits_after_token_7");
        assert_close(session.prefill(&[7]).unwrap(), &fixture_tensor(file, &name), LOGITS, &name);
    }
}

#[test]
fn greedy_tokens_and_mtp_rounds_equal_the_fixture() {
    let engine = fixture(1);
    let prompt = fixture_ids(&["prompt64"]);
    let expected = fixture_ids(&["greedy128", "tokens"]);
    let plain: Vec<u32> = run(&engine, &request(&prompt, 128)).tokens.iter().map(|t| t.id).collect();
    assert_eq!(plain, expected);
    let answer = run(&engine, &GenerateRequest { drafter: DrafterKind::Mtp, budget: budget(4), ..request(&prompt, 128) });
    let trace = &fixture_json()["mtp_spec_trace_chain4"]["rounds"];
    let rounds = trace.as_array().unwrap();
    let mut compared = 0;
    for (round, expected) in answer.rounds.iter().zip(rounds) {
        // The trace drafts 4 tokens to the end; the engine drafts no deeper than the cap can use.
        let drafts = fixture_round(&expected["draft"]);
        let depth = round.tree.max_depth();
        assert_eq!(round.tree.tokens()[1..], drafts[..depth]);
        if depth == 4 {
            assert_eq!(round.acceptance.accepted() as u64, expected["accepted"].as_u64().unwrap());
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared} rounds compared");
}

fn fixture_round(json: &serde_json::Value) -> Vec<u32> {
    serde_json::from_value(json.clone()).unwrap()
}

#[test]
fn straw_tiny_equals_the_reference() {
    let engine = straw(1);
    let oracle = Reference::load(&straw_folder()).unwrap();
    assert!(matches!(engine.config().quantisation, QuantScheme::Q8 { .. }));
    assert_eq!(engine.drafters(), oracle.drafters());
    let mut ties = 0;
    for prompt in STRAW_PROMPTS {
        let fast = run(&engine, &request(prompt, 24));
        let slow = oracle.generate(&request(prompt, 24), &mut |_| ControlFlow::Continue(())).unwrap();
        let tokens: Vec<u32> = prompt.iter().copied().chain(fast.tokens.iter().map(|t| t.id)).collect();
        let exact = oracle.logits(&tokens).unwrap();
        let found = engine.logits(&tokens).unwrap();
        let flat: Vec<f64> = exact.iter().copied().collect();
        assert_close(&found, &flat, LOGITS, "straw-tiny logits");
        let parted = fast.tokens.iter().zip(&slow.tokens).position(|(a, b)| a.id != b.id);
        if let Some(at) = parted {
            let row = exact.row(prompt.len() + at - 1);
            let margin = row[fast.tokens[at].id as usize] - row[slow.tokens[at].id as usize];
            assert!(margin.abs() < TIE, "token {at} differs by {margin}, which is no tie");
            ties += 1;
            println!("token {at}: a tie of {margin:.2e} went the other way");
        }
        let shared = parted.unwrap_or(fast.tokens.len());
        for (a, b) in fast.tokens[..shared].iter().zip(&slow.tokens) {
            assert!((a.log_prob - b.log_prob).abs() < LOGITS as f32, "{} {}", a.log_prob, b.log_prob);
        }
    }
    println!("{ties} of {} answers parted at a near tie", STRAW_PROMPTS.len());
    assert!(ties < STRAW_PROMPTS.len(), "every answer parted");
}

#[test]
fn straw_tinys_trees_equal_the_reference() {
    let engine = straw(1);
    let oracle = Reference::load(&straw_folder()).unwrap();
    let prompt = STRAW_PROMPTS[2];
    let nodes: Vec<(usize, u32, f32)> = (0..20).map(|i| (i / 2, 100 + 31 * i as u32, -0.5)).collect();
    let tree = DraftTree::new(*prompt.last().unwrap(), &nodes).unwrap();
    let expected: Vec<f64> = oracle.tree_logits(prompt, &tree).unwrap().iter().copied().collect();
    assert_close(&engine.tree_logits(prompt, &tree).unwrap(), &expected, LOGITS, "straw-tiny tree");
}

#[test]
fn drafters_propose_what_the_reference_proposes() {
    let engine = straw(1);
    let oracle = Reference::load(&straw_folder()).unwrap();
    for drafter in [DrafterKind::Mtp, DrafterKind::Dflash, DrafterKind::DflashTree, DrafterKind::Weaver] {
        let request = GenerateRequest { drafter, budget: budget(8), ..request(STRAW_PROMPTS[1], 20) };
        let fast = run(&engine, &request);
        let slow = oracle.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap();
        let ids = |tree: &DraftTree| -> Vec<u32> { tree.tokens().to_vec() };
        let same = fast.rounds.iter().zip(&slow.rounds).filter(|(a, b)| ids(&a.tree) == ids(&b.tree)).count();
        println!("{drafter}: {same} of {} rounds drafted the same tree", slow.rounds.len());
        assert_eq!(fast.rounds.len(), slow.rounds.len(), "{drafter}: other number of passes");
        assert!(4 * same >= 3 * slow.rounds.len(), "{drafter}: {same} of {} rounds drafted alike", slow.rounds.len());
    }
}
