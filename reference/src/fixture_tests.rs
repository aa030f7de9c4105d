//! Every number of tests/fixtures/qwen35-tiny-a: its oracles are the transformers library in f64 and an independent numpy
//! implementation, which agree to about 1e-13.

use crate::{
    Reference,
    fixture::{EXACT_F64, Expected, expected, fixture_dir, ids, list, near, nested, state_after},
    layer::MixerRows,
    model::Pass,
    rows::Rows,
    state::State,
};
use ndarray::{Array1, Array2, Axis, s};
use specdec::{Budget, DraftTree, DrafterKind, GenerateRequest, SamplingParams};
use std::ops::ControlFlow;

/// Values stored in f32: half a unit in the last place of a logit below 16.
const STORED_F32: f64 = 16.0 * f32::EPSILON as f64 / 2.0;

fn pass(tokens: &[u32]) -> Pass {
    let target = &nested().target;
    target.forward(tokens, &Rows::chain(tokens.len(), 0), &State::new(&target.config))
}

#[test]
fn logits_and_states_of_the_prompts_are_the_oracles() {
    let prompt = ids("/prompt64");
    Expected::open("ref_prompt64.safetensors").check("logits_f64", &nested().logits(&prompt).unwrap(), EXACT_F64);
    Expected::open("ref_state_after_prompt64.safetensors").check_state("", &state_after(&nested().target, &prompt));
    let (long, file) = (ids("/long200"), Expected::open("ref_long200.safetensors"));
    file.check("logits_f64_rounded_to_f32", &nested().logits(&long).unwrap(), STORED_F32);
    file.check_state("state.", &state_after(&nested().target, &long));
}

#[test]
fn the_flat_layout_is_the_same_model() {
    let flat = Reference::load(&fixture_dir().join("flat")).unwrap();
    let prompt = ids("/short12");
    assert_eq!(flat.logits(&prompt).unwrap(), nested().logits(&prompt).unwrap());
    // The nested folder has a generation_config.json, which names one end token more.
    assert_eq!((&flat.config().eos_token_ids[..], &nested().config().eos_token_ids[..]), (&[272][..], &[274, 272][..]));
}

#[test]
fn every_inner_tensor_is_the_oracles() {
    let (tokens, file) = (ids("/short12"), Expected::open("ref_short12_hidden.safetensors"));
    let pass = pass(&tokens);
    file.check("embed", &nested().target.embed(&tokens), 0.0);
    file.check("final_norm", &pass.hidden, EXACT_F64);
    file.check("logits", &pass.logits, EXACT_F64);
    for (i, layer) in pass.layers.iter().enumerate() {
        file.check(&format!("layer{i}.out"), &layer.stream, EXACT_F64);
        match &layer.mixer {
            MixerRows::Gdn(rows) if i == 0 => {
                let name = |part: &str| format!("inner.model.layers.0.linear_attn.{part}");
                file.check(&name("qkv_raw"), &rows.raw, EXACT_F64);
                file.check(&name("qkv_conv"), &rows.convolved, EXACT_F64);
                file.check(&name("z"), &rows.z, EXACT_F64);
                file.check(&name("q"), &rows.inputs.query, EXACT_F64);
                file.check(&name("k"), &rows.inputs.key, EXACT_F64);
                file.check(&name("v"), &rows.inputs.value, EXACT_F64);
                file.check(&name("beta"), &rows.inputs.beta, EXACT_F64);
                file.check(&name("g"), &rows.inputs.g, EXACT_F64);
                file.check(&name("core"), &rows.core, EXACT_F64);
                file.check(&name("gated"), &rows.gated, EXACT_F64);
                file.check(&name("out"), &rows.output, EXACT_F64);
            }
            MixerRows::Gdn(_) => {}
            MixerRows::Attention(rows) => {
                let name = |part: &str| format!("inner.model.layers.3.self_attn.{part}");
                file.check(&name("q"), &rows.query, EXACT_F64);
                file.check(&name("k"), &rows.key, EXACT_F64);
                file.check(&name("v"), &rows.value, EXACT_F64);
                file.check(&name("gate"), rows.gate.as_ref().unwrap(), EXACT_F64);
                file.check(&name("attn"), &rows.mixed, EXACT_F64);
                file.check(&name("gated"), &rows.gated, EXACT_F64);
                file.check(&name("out"), &rows.output, EXACT_F64);
            }
        }
    }
}

#[test]
fn taps_hold_the_stream_after_their_layer() {
    let (tokens, file) = (ids::<u32>("/short12"), Expected::open("ref_short12_hidden.safetensors"));
    let features = pass(&tokens).features(&[0, 3], &[0, 5]);
    let hidden = nested().config().hidden_size;
    for (column, layer) in [(0, 0), (hidden, 3)] {
        let stored = file.matrix(&format!("layer{layer}.out"), 12, hidden);
        for (row, position) in [(0, 0), (1, 5)] {
            near("tap", &features.slice(s![row, column..column + hidden]), &stored.row(position), EXACT_F64);
        }
    }
}

#[test]
fn mtp_rows_and_chain_are_the_oracles() {
    let (prompt, file) = (ids::<u32>("/prompt64"), Expected::open("ref_mtp.safetensors"));
    let (model, head) = (nested(), nested().mtp.as_ref().unwrap());
    let main = pass(&prompt).hidden;
    file.check("main_final_norm_hidden_f64", &main, EXACT_F64);
    let mut state = head.start(&model.target);
    let next = ids::<u32>("/mtp/teacher_forced_input_tokens");
    let hidden = head.observe(&model.target, &next, &main, &mut state);
    file.check("mtp_hidden_f64", &hidden, EXACT_F64);
    file.check("mtp_logits_f64", &model.target.logits(&hidden), EXACT_F64);
    let tokens = ids::<u32>("/mtp/chain5_tokens");
    let mut chain = Array2::zeros((0, model.config().vocab_size));
    for (i, &token) in tokens.iter().enumerate() {
        let logits = model.target.logits(&state.last);
        assert_eq!(argmax(logits.row(0).to_owned()), token, "draft {i}");
        chain.push_row(logits.row(0)).unwrap();
        let last = state.last.clone();
        head.observe(&model.target, &[token], &last, &mut state);
    }
    file.check("chain5_logits_f64", &chain, EXACT_F64);
}

fn argmax(logits: Array1<f64>) -> u32 {
    (0..logits.len()).reduce(|best, i| if logits[i] > logits[best] { i } else { best }).unwrap() as u32
}

/// The fixture's tree under its last prompt token; node `i` is row `i + 1`.
fn tree16() -> (Vec<u32>, DraftTree) {
    let prompt: Vec<u32> = ids("/tree_prompt32");
    let parents = expected("/tree16/parent");
    let parents = parents.as_array().unwrap().iter().map(|p| (p.as_i64().unwrap() + 1) as usize);
    let drafted: Vec<_> = parents.zip(ids::<u32>("/tree16/token")).map(|(parent, token)| (parent, token, 0.0)).collect();
    let tree = DraftTree::new(prompt[31], &drafted).unwrap();
    (prompt, tree)
}

#[test]
fn tree_logits_are_those_of_every_path_alone() {
    let (prompt, tree) = tree16();
    let file = Expected::open("ref_tree16.safetensors");
    let logits = nested().tree_logits(&prompt, &tree).unwrap();
    file.check("root_logits_f64", &logits.row(0), EXACT_F64);
    file.check("node_logits_f64", &logits.slice(s![1.., ..]), EXACT_F64);
    let samples: Vec<u32> = logits.outer_iter().map(|row| argmax(row.to_owned())).collect();
    let acceptance = tree.follow(&samples);
    let nodes: Vec<usize> = acceptance.path.iter().map(|row| row - 1).collect();
    assert_eq!(nodes, ids::<usize>("/tree16/greedy_accepted_nodes"));
    assert_eq!(u64::from(acceptance.next_token), expected("/tree16/greedy_bonus_token").as_u64().unwrap());
}

#[test]
fn a_full_and_a_partial_commit_leave_the_state_of_plain_decoding() {
    let (prompt, tree) = tree16();
    let (target, file) = (&nested().target, Expected::open("ref_tree16.safetensors"));
    let base = state_after(target, &prompt[..31]);
    file.check_state("before.", &state_after(target, &prompt));
    let pass = target.forward(tree.tokens(), &Rows::tree(&tree, 31), &base);
    for name in ["commit_full", "commit_partial"] {
        let mut path = vec![0];
        path.extend(ids::<usize>(&format!("/tree16/{name}_nodes")).iter().map(|node| node + 1));
        let mut state = base.clone();
        state.commit(&pass.layers, &path);
        file.check_state(&format!("{name}."), &state);
        let next = target.forward(&[7], &Rows::chain(1, state.length), &state);
        file.check(&format!("{name}.next_logits_after_token_7"), &next.logits.row(0), EXACT_F64);
    }
}

fn request(max_tokens: usize, drafter: DrafterKind, budget: usize) -> GenerateRequest {
    GenerateRequest {
        prompt: ids("/prompt64"),
        max_tokens,
        stop_tokens: vec![],
        sampling: SamplingParams::greedy(),
        drafter,
        budget: Budget::new(budget).unwrap(),
    }
}

#[test]
fn greedy_text_is_the_oracles_with_its_logits() {
    let answer = nested().generate(&request(128, DrafterKind::Off, 0), &mut |_| ControlFlow::Continue(())).unwrap();
    let tokens: Vec<u32> = answer.tokens.iter().map(|t| t.id).collect();
    assert_eq!(tokens, ids::<u32>("/greedy128/tokens"));
    let mut all: Vec<u32> = ids("/prompt64");
    all.extend(&tokens[..127]);
    let logits = nested().logits(&all).unwrap().slice_axis(Axis(0), (63..).into()).to_owned();
    Expected::open("ref_greedy128.safetensors").check("logits_f64_rounded_to_f32", &logits, STORED_F32);
}

#[test]
fn the_mtp_speculation_trace_is_the_oracles() {
    let answer = nested().generate(&request(128, DrafterKind::Mtp, 4), &mut |_| ControlFlow::Continue(())).unwrap();
    let rounds = expected("/mtp_spec_trace_chain4/rounds");
    let rounds = rounds.as_array().unwrap();
    assert_eq!(answer.rounds.len(), rounds.len());
    // The last rounds are cut to the cap of 128 tokens, which the oracle's trace does not have.
    for (i, (found, round)) in answer.rounds.iter().zip(rounds).enumerate() {
        let draft = list::<u32>(&round["draft"]);
        let drafted = &found.tree.tokens()[1..];
        assert_eq!(drafted, &draft[..drafted.len()], "round {i}");
        if drafted.len() == draft.len() {
            assert_eq!(found.acceptance.accepted() as u64, round["accepted"].as_u64().unwrap(), "round {i}");
        }
    }
    let full = answer.rounds.iter().filter(|r| r.tree.drafted() == 4).count();
    assert!(full >= rounds.len() - 2, "{full} of {} rounds drafted all four", rounds.len());
    let tokens: Vec<u32> = answer.tokens.iter().map(|t| t.id).collect();
    assert_eq!(tokens, ids::<u32>("/greedy128/tokens"));
}
