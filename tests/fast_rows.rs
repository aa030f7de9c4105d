//! Row independence of the fast engine: what is computed for a token depends on that token and its ancestors, never on the
//! rows that share its pass, the threads, or the way the prompt was cut. Everything here is bit equality.

use crate::fast_models::*;
use fast::{Engine, KvType, LoadOptions, Session};
use specdec::DraftTree;

/// Logits of each token of a sequence decoded one at a time after `prompt`.
fn one_at_a_time(engine: &Engine, prompt: &[u32], tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut session = engine.session_with_room(prompt.len() + tokens.len());
    session.prefill(prompt).unwrap();
    tokens.iter().map(|&t| number_bits(session.prefill(&[t]).unwrap())).collect()
}

fn rows(logits: &[f32], vocab: usize) -> Vec<Vec<u32>> {
    logits.chunks_exact(vocab).map(number_bits).collect()
}

/// A pseudo-random tree of `drafted` nodes whose siblings differ: a star, a chain, or anything between.
fn tree(root: u32, drafted: usize, vocab: u32, salt: u64) -> DraftTree {
    let mut state = salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let nodes: Vec<(usize, u32, f32)> = (0..drafted)
        .map(|i| {
            let parent = match salt % 4 {
                0 => i,
                1 => 0,
                2 => i / 2,
                _ => draw(i + 1),
            };
            (parent, (i as u32 * 7 + draw(7) as u32) % vocab, -0.5)
        })
        .collect();
    DraftTree::teacher_forced(root, &nodes).unwrap()
}

fn check_widths(engine: &Engine, prompt: &[u32]) {
    let vocab = engine.config().vocab_size;
    let tokens: Vec<u32> = (0..33).map(|i| (11 + 17 * i) % vocab as u32).collect();
    let single = one_at_a_time(engine, prompt, &tokens);
    let mut session = engine.session_with_room(prompt.len() + 33);
    session.prefill(prompt).unwrap();
    for n in 1..=33 {
        let drafts: Vec<(u32, f32)> = tokens[1..n].iter().map(|&t| (t, -0.5)).collect();
        let logits = session.verify(&DraftTree::chain(tokens[0], &drafts).unwrap()).unwrap();
        assert!(rows(logits, vocab) == single[..n], "{n} rows differ from one at a time");
    }
    assert_eq!(session.len(), prompt.len(), "verification commits nothing");
    assert!(number_bits(session.prefill(&tokens[..1]).unwrap()) == single[0], "33 verifications left a trace");
}

#[test]
fn one_to_33_rows_give_the_bits_of_one_row_at_a_time() {
    check_widths(&fixture(1), &fixture_ids(&["prompt64"]));
    check_widths(&straw(1), STRAW_PROMPTS[0]);
}

#[test]
fn rows_across_a_block_boundary_of_attention_are_no_exception() {
    let long = fixture_ids(&["long200"]);
    for kv in [KvType::F32, KvType::Bf16] {
        let engine = Engine::load(&fixture_folder(), &LoadOptions { threads: 1, kv, ..Default::default() }).unwrap();
        for length in [40, 63, 64, 65, 127] {
            check_widths(&engine, &long[..length]);
        }
    }
}

#[test]
fn prefill_chunking_changes_no_bit() {
    let prompt = fixture_ids(&["long200"]);
    for engine in [fixture(1), straw(1)] {
        let prompt: Vec<u32> = prompt.iter().map(|&t| t % engine.config().vocab_size as u32).collect();
        let state = |session: &Session| -> Vec<Vec<u32>> {
            let layers = 0..engine.config().layers.len();
            let parts = layers.filter_map(|l| session.delta_state(l)).flat_map(|(s, tail)| [number_bits(s), number_bits(tail)]);
            parts.collect()
        };
        let mut whole = engine.session_with_room(202);
        let logits = number_bits(whole.prefill(&prompt).unwrap());
        let next = number_bits(whole.prefill(&[5]).unwrap());
        for chunk in [1, 7, 16, 63, 64, 65, 100, 199] {
            let mut session = engine.session_with_room(202);
            let mut last = vec![];
            for part in prompt.chunks(chunk) {
                last = number_bits(session.prefill(part).unwrap());
            }
            assert!(last == logits, "chunks of {chunk}: other logits");
            assert!(number_bits(session.prefill(&[5]).unwrap()) == next, "chunks of {chunk}: other continuation");
            assert!(state(&session) == state(&whole), "chunks of {chunk}: other state");
        }
        let all = rows(&engine.logits(&prompt).unwrap(), engine.config().vocab_size);
        assert!(all[199] == logits, "scoring gives other bits than prefill");
    }
}

#[test]
fn threads_change_no_bit() {
    let prompt = &fixture_ids(&["long200"])[..70];
    for load in [fixture as fn(usize) -> Engine, straw] {
        let one = load(1);
        let tree = tree(prompt[69], 32, one.config().vocab_size as u32, 7);
        let expected = number_bits(&one.tree_logits(prompt, &tree).unwrap());
        for threads in [2, 3, 4] {
            assert!(number_bits(&load(threads).tree_logits(prompt, &tree).unwrap()) == expected, "{threads} threads");
        }
    }
}

#[test]
fn a_tree_path_is_its_sequence() {
    for (engine, prompt, trees) in [(fixture(1), &fixture_ids(&["prompt64"])[..], 12), (straw(1), STRAW_PROMPTS[1], 4)] {
        let vocab = engine.config().vocab_size;
        for salt in 0..trees {
            let tree = tree(*prompt.last().unwrap(), [1, 5, 16, 32][salt as usize % 4], vocab as u32, salt);
            let found = rows(&engine.tree_logits(prompt, &tree).unwrap(), vocab);
            for (row, found) in found.iter().enumerate() {
                let path = tree.path(row);
                let sequence: Vec<u32> = path.iter().map(|&n| tree.tokens()[n]).collect();
                let mut session = engine.session_with_room(prompt.len() + 33);
                session.prefill(&prompt[..prompt.len() - 1]).unwrap();
                assert!(*found == number_bits(session.prefill(&sequence).unwrap()), "tree {salt}, row {row}");
            }
        }
    }
}

#[test]
fn a_tree_wider_than_a_pass_has_the_same_rows() {
    let (engine, prompt) = (fixture(1), fixture_ids(&["short12"]));
    let vocab = engine.config().vocab_size;
    let wide = (0..).map(|salt| tree(prompt[11], 90, vocab as u32, salt)).find(|t| (6..20).contains(&t.max_depth())).unwrap();
    let found = rows(&engine.tree_logits(&prompt, &wide).unwrap(), vocab);
    for (row, found) in found.iter().enumerate() {
        let sequence: Vec<u32> = wide.path(row).iter().map(|&n| wide.tokens()[n]).collect();
        let mut session = engine.session_with_room(64);
        session.prefill(&prompt[..11]).unwrap();
        assert!(*found == number_bits(session.prefill(&sequence).unwrap()), "row {row}");
    }
    let deep = DraftTree::chain(prompt[11], &[(1, 0.0); 33]).unwrap();
    assert!(engine.tree_logits(&prompt, &deep).unwrap_err().to_string().contains("at most 33"));
}

#[test]
fn siblings_are_isolated() {
    let (engine, prompt) = (fixture(1), fixture_ids(&["prompt64"]));
    let vocab = engine.config().vocab_size;
    let nodes = [(0, 5, 0.0), (0, 9, 0.0), (1, 6, 0.0), (2, 6, 0.0), (3, 8, 0.0), (4, 8, 0.0)];
    let mut other = nodes;
    // The second branch (rows 2, 4, 6) gets other tokens.
    (other[1].1, other[3].1, other[5].1) = (200, 201, 202);
    let logits = |nodes: &[(usize, u32, f32)]| {
        rows(&engine.tree_logits(&prompt, &DraftTree::new(prompt[63], nodes).unwrap()).unwrap(), vocab)
    };
    let (a, b) = (logits(&nodes), logits(&other));
    for row in [0, 1, 3, 5] {
        assert!(a[row] == b[row], "row {row} saw a sibling's branch");
    }
    for row in [2, 4, 6] {
        assert!(a[row] != b[row], "row {row} ignores its own tokens");
    }
}

#[test]
fn a_commit_is_having_decoded_the_path_and_rejected_drafts_leave_no_trace() {
    for (engine, prompt) in [(fixture(1), &fixture_ids(&["prompt64"])[..]), (straw(1), STRAW_PROMPTS[2])] {
        let vocab = engine.config().vocab_size as u32;
        let tree = tree(9, 24, vocab, 3);
        let deepest = (0..tree.rows()).max_by_key(|&r| tree.depths()[r]).unwrap();
        let full = tree.path(deepest);
        for keep in 1..=full.len() {
            let mut session = engine.session_with_room(prompt.len() + 40);
            session.prefill(prompt).unwrap();
            session.verify(&tree).unwrap();
            session.commit(&full[..keep]).unwrap();
            let tokens: Vec<u32> = full[..keep].iter().map(|&r| tree.tokens()[r]).collect();
            let mut plain = engine.session_with_room(prompt.len() + 40);
            plain.prefill(prompt).unwrap();
            plain.prefill(&tokens).unwrap();
            for layer in 0..engine.config().layers.len() {
                let states = [&session, &plain].map(|s| s.delta_state(layer).map(|(a, b)| (number_bits(a), number_bits(b))));
                assert!(states[0] == states[1], "layer {layer} after {keep} rows");
            }
            for next in [3, 4, 5] {
                let found = number_bits(session.prefill(&[next]).unwrap());
                assert!(found == number_bits(plain.prefill(&[next]).unwrap()), "{keep} rows, then token {next}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let (engine, prompt) = (fixture(1), fixture_ids(&["short12"]));
    let mut session = engine.session_with_room(14);
    let refused = |result: Result<(), fast::FastError>, words: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(session.prefill(&[]).map(|_| ()), "at least 1");
    refused(session.prefill(&[320]).map(|_| ()), "vocabulary size 320");
    refused(session.commit(&[0]), "last verification");
    session.prefill(&prompt).unwrap();
    refused(session.prefill(&[1, 2, 3]).map(|_| ()), "14 tokens");
    let deep = DraftTree::chain(1, &[(2, 0.0), (3, 0.0)]).unwrap();
    refused(session.verify(&deep).map(|_| ()), "14 positions");
    refused(session.verify(&DraftTree::chain(1, &vec![(2, 0.0); 33]).unwrap()).map(|_| ()), "at most 33");
    refused(session.verify(&DraftTree::root(320)).map(|_| ()), "vocabulary size 320");
    let flat = DraftTree::new(1, &[(0, 2, 0.0), (0, 3, 0.0)]).unwrap();
    session.verify(&flat).unwrap();
    for path in [&[][..], &[1], &[0, 1, 2], &[0, 9]] {
        refused(session.commit(path), "last verification");
    }
    session.commit(&[0, 2]).unwrap();
    refused(session.commit(&[0]), "last verification");
    let mut plain = engine.session_with_room(14);
    plain.prefill(&prompt).unwrap();
    plain.prefill(&[1, 3]).unwrap();
    assert_eq!((session.len(), session.delta_state(0)), (plain.len(), plain.delta_state(0)));
    refused(engine.tree_logits(&prompt, &DraftTree::root(0)).map(|_| ()), "root token");
}
