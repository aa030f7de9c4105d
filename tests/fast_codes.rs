//! The promise on quantised checkpoints L and M: 8-bit arithmetic changes no bit between one row and 33, chunkings, threads,
//! drafters and budgets; and what it computes is near the unquantised model. Checkpoints are made here, by nearest rounding.

use crate::fast_models::*;
use fast::identity::{Grid, check};
use fast::{Engine, LoadOptions};
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use specdec::{Activations, DraftTree, SamplingParams, hadamard};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

const GROUP: usize = 64;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Floats of a stored tensor; q8 codes times their scales.
fn floats(tensors: &SafeTensors, name: &str) -> Vec<f32> {
    let view = tensors.tensor(name).unwrap();
    let data = view.data();
    let words = || data.chunks_exact(2).map(|b| [b[0], b[1]]);
    match view.dtype() {
        Dtype::BF16 => words().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        Dtype::F16 => words().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::F32 => data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        Dtype::I8 => {
            let (scales, inputs) = (floats(tensors, &format!("{name}.scale")), view.shape()[1]);
            let scale = |i: usize| scales[i / inputs * inputs.div_ceil(GROUP) + i % inputs / GROUP];
            data.iter().enumerate().map(|(i, &b)| scale(i) * f32::from(b as i8)).collect()
        }
        other => panic!("{name} has type {other:?}"),
    }
}

/// Adds a matrix as codes.
fn add_codes(to: &mut Tensors, name: &str, weights: &[f32], (outputs, inputs): (usize, usize), four: bool, rotated: bool) {
    let signs = hadamard::signs(inputs);
    let halves = |codes: &[u8]| codes.chunks(2).map(|p| p[0] | p.get(1).map_or(0, |p| p << 4)).collect::<Vec<u8>>();
    let (mut codes, mut scales, mut zeros) = (vec![], vec![], vec![]);
    for row in weights.chunks(inputs) {
        let mut row: Vec<f64> = row.iter().map(|&w| f64::from(w)).collect();
        if rotated {
            hadamard::fold_row(&mut row, &signs);
        }
        let (mut row_codes, mut row_zeros) = (vec![], vec![]);
        for w in row.chunks(GROUP) {
            let low = w.iter().fold(0f64, |m, &w| m.min(w));
            let high = w.iter().fold(0f64, |m, &w| m.max(w));
            let exact = if four { (high - low) / 15.0 } else { high.max(-low) / 127.0 };
            let scale = bf16::from_f64(exact.max(1e-20));
            let zero = if four { (-low / scale.to_f64()).round().clamp(0.0, 15.0) } else { 0.0 };
            let range = if four { (0.0, 15.0) } else { (-127.0, 127.0) };
            row_codes.extend(w.iter().map(|w| ((w / scale.to_f64()).round() + zero).clamp(range.0, range.1) as i32 as u8));
            row_zeros.push(zero as u8);
            scales.extend(scale.to_le_bytes());
        }
        codes.extend(if four { halves(&row_codes) } else { row_codes });
        zeros.extend(halves(&row_zeros));
    }
    let groups = inputs.div_ceil(GROUP);
    to.insert(format!("{name}.scale"), (Dtype::BF16, vec![outputs, groups], scales));
    if four {
        to.insert(name.into(), (Dtype::U8, vec![outputs, inputs.div_ceil(2)], codes));
        to.insert(format!("{name}.zero"), (Dtype::U8, vec![outputs, groups.div_ceil(2)], zeros));
    } else {
        to.insert(name.into(), (Dtype::I8, vec![outputs, inputs], codes));
    }
    if rotated {
        let bytes = signs.iter().map(|&d| d as u8).collect();
        to.insert(format!("hadamard.signs.{inputs}"), (Dtype::I8, vec![inputs], bytes));
    }
}

/// Writes a copy of one checkpoint folder in scheme `l` or `m`.
fn convert(from: &Path, to: &Path, scheme: &str, rotated: bool) {
    fs::create_dir_all(to).unwrap();
    let bytes = fs::read(from.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = Tensors::new();
    for (name, view) in file.tensors() {
        match *view.shape() {
            [outputs, inputs] if name.ends_with(".weight") && !name.contains("in_proj_a") && !name.contains("in_proj_b") => {
                add_codes(&mut tensors, &name, &floats(&file, &name), (outputs, inputs), scheme == "m", rotated);
            }
            _ if name.ends_with(".scale") => {}
            _ => _ = tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())),
        }
    }
    let views = tensors.iter().map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(to.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let mut config: Value = serde_json::from_str(&fs::read_to_string(from.join("config.json")).unwrap()).unwrap();
    config["quantization_config"] = json!({"quant_method": "straw", "scheme": scheme, "version": 2, "group_size": GROUP,
        "hadamard": if rotated { 32 } else { 0 }, "activations": "int8", "symmetric": scheme == "l"});
    fs::write(to.join("config.json"), config.to_string()).unwrap();
}

fn model(from: &Path, scheme: &str, rotated: bool) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    convert(from, folder.path(), scheme, rotated);
    for part in ["dflash", "weaver"] {
        if from.join(part).exists() {
            convert(&from.join(part), &folder.path().join(part), scheme, rotated);
        }
    }
    folder
}

fn straw_in(scheme: &str) -> &'static Path {
    static L: OnceLock<TempDir> = OnceLock::new();
    static M: OnceLock<TempDir> = OnceLock::new();
    let cell = if scheme == "l" { &L } else { &M };
    cell.get_or_init(|| model(&straw_folder(), scheme, true)).path()
}

fn load(folder: &Path, threads: usize, activations: Option<Activations>) -> Engine {
    Engine::load(folder, &LoadOptions { threads, activations, ..Default::default() }).unwrap()
}

fn check_rows(engine: &Engine, prompt: &[u32]) {
    let vocab = engine.config().vocab_size;
    let bits = |logits: &[f32]| -> Vec<Vec<u32>> { logits.chunks_exact(vocab).map(number_bits).collect() };
    let tokens: Vec<u32> = (0..33).map(|i| (11 + 17 * i) % vocab as u32).collect();
    let mut plain = engine.session_with_room(prompt.len() + 33);
    plain.prefill(prompt).unwrap();
    let single: Vec<_> = tokens.iter().map(|&t| number_bits(plain.prefill(&[t]).unwrap())).collect();
    let mut session = engine.session_with_room(prompt.len() + 33);
    for part in prompt.chunks(7) {
        session.prefill(part).unwrap();
    }
    for n in 1..=33 {
        let drafts: Vec<(u32, f32)> = tokens[1..n].iter().map(|&t| (t, -0.5)).collect();
        let logits = session.verify(&DraftTree::chain(tokens[0], &drafts).unwrap()).unwrap();
        assert!(bits(logits) == single[..n], "{n} rows differ from one at a time");
    }
    // A tree of two branches: each row as the sequence of its path.
    let nodes: Vec<(usize, u32, f32)> = (0..20).map(|i| (if i < 2 { 0 } else { i - 1 }, tokens[i + 1], -0.5)).collect();
    let tree = DraftTree::teacher_forced(tokens[0], &nodes).unwrap();
    let rows = bits(session.verify(&tree).unwrap());
    for row in [19, 20] {
        let path: Vec<u32> = tree.path(row).iter().map(|&r| tree.tokens()[r]).collect();
        let mut alone = engine.session_with_room(prompt.len() + 33);
        alone.prefill(prompt).unwrap();
        assert!(number_bits(alone.prefill(&path).unwrap()) == rows[row], "row {row} of a tree");
    }
}

#[test]
fn one_to_33_rows_trees_and_chunks_give_the_same_bits_on_l_and_m() {
    let prompt = fixture_ids(&["prompt64"]);
    for scheme in ["l", "m"] {
        for rotated in [true, false] {
            let folder = model(&fixture_folder(), scheme, rotated);
            check_rows(&load(folder.path(), 1, None), &prompt);
        }
        check_rows(&load(straw_in(scheme), 2, None), STRAW_PROMPTS[0]);
    }
}

#[test]
fn drafters_budgets_and_threads_change_no_bit_on_l_and_m() {
    for (scheme, budgets) in [("l", vec![4, 32]), ("m", vec![9])] {
        let mut answers = vec![];
        for threads in [1, 2, 4] {
            let engine = load(straw_in(scheme), threads, None);
            assert!(engine.drafters().len() >= 6, "{:?}", engine.drafters());
            answers.push(number_bits(&engine.logits(STRAW_PROMPTS[1]).unwrap()));
            // L on one thread, M on two.
            if threads != if scheme == "l" { 1 } else { 2 } {
                continue;
            }
            let grid = Grid {
                drafters: engine.drafters(),
                budgets: budgets.iter().map(|&n| budget(n)).collect(),
                samplings: vec![SamplingParams::greedy(), sampled(0.7, 11), sampled(1.0, 12)],
                max_tokens: 12,
                stop_tokens: vec![2],
                auto: threads == 1,
            };
            let different = check(&engine, &[STRAW_PROMPTS[threads].to_vec()], &grid, &mut |_| ()).unwrap();
            assert!(different.is_empty(), "{scheme}, {threads} threads: {:?}", different[0]);
        }
        assert!(answers.windows(2).all(|w| w[0] == w[1]), "{scheme}: threads change a bit");
    }
}

/// Mean Kullback-Leibler divergence of the rows of `b` from those of `a`, nats.
fn divergence(a: &[f32], b: &[f32], vocab: usize) -> f64 {
    let log_probs = |row: &[f32]| -> Vec<f64> {
        let top = row.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
        let sum: f64 = row.iter().map(|&x| f64::from(x - top).exp()).sum();
        row.iter().map(|&x| f64::from(x - top) - sum.ln()).collect()
    };
    let rows = a.chunks_exact(vocab).zip(b.chunks_exact(vocab));
    let each: Vec<f64> = rows.map(|(a, b)| log_probs(a).iter().zip(log_probs(b)).map(|(a, b)| a.exp() * (a - b)).sum()).collect();
    each.iter().sum::<f64>() / each.len() as f64
}

#[test]
fn l_and_m_stay_near_the_model_they_were_made_of() {
    let (plain, prompt) = (straw(2), STRAW_PROMPTS[1]);
    let (vocab, exact) = (plain.config().vocab_size, plain.logits(prompt).unwrap());
    for (scheme, limit) in [("l", 0.005), ("m", 0.5)] {
        let full = load(straw_in(scheme), 2, None).logits(prompt).unwrap();
        let weight_only = load(straw_in(scheme), 2, Some(Activations::F32)).logits(prompt).unwrap();
        let (far, near) = (divergence(&exact, &full, vocab), divergence(&weight_only, &full, vocab));
        assert!(far < limit, "{scheme}: {far} nats from the original");
        assert!(near < 0.005 && near > 0.0, "{scheme}: rounded activations cost {near} nats");
    }
}

#[test]
fn drafters_land_drafts_on_l() {
    let engine = load(straw_in("l"), 2, None);
    let kinds: BTreeSet<_> = engine.drafters().into_iter().map(|k| k.name()).collect();
    for drafter in engine.drafters().into_iter().filter(|d| ["mtp", "dflash", "weaver"].contains(&d.name())) {
        let request = specdec::GenerateRequest { drafter, budget: budget(16), ..request(STRAW_PROMPTS[1], 40) };
        let per_pass = specdec::tokens_per_pass(&run(&engine, &request).rounds).unwrap();
        assert!(per_pass > 1.5, "{drafter} of {kinds:?}: {per_pass:.2} tokens per pass");
    }
}

fn refusal(change: impl FnOnce(&mut Tensors, &mut Value)) -> String {
    let made = model(&fixture_folder(), "m", true);
    let file: PathBuf = made.path().join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let mut tensors: Tensors = read.into_iter().map(|(n, v)| (n, (v.dtype(), v.shape().to_vec(), v.data().to_vec()))).collect();
    let mut config: Value = serde_json::from_str(&fs::read_to_string(made.path().join("config.json")).unwrap()).unwrap();
    change(&mut tensors, &mut config);
    let views = tensors.iter().map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(&file, safetensors::serialize(views, None).unwrap()).unwrap();
    fs::write(made.path().join("config.json"), config.to_string()).unwrap();
    Engine::load(made.path(), &LoadOptions::default()).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn damaged_codes_are_refused_with_a_sentence() {
    const HEAD: &str = "lm_head.weight";
    for (error, words) in [
        (refusal(|t, _| _ = t.remove("hadamard.signs.64")), "tensor hadamard.signs.64 is missing"),
        (refusal(|t, _| t.get_mut("hadamard.signs.64").unwrap().2[3] = 0), "expected I8 signs, each 1 or -1"),
        (refusal(|t, _| _ = t.remove(&format!("{HEAD}.zero"))), "lm_head.weight.zero is missing"),
        (refusal(|t, _| t.get_mut(HEAD).unwrap().1.reverse()), "tensor lm_head.weight has shape"),
        (refusal(|t, _| t.get_mut(&format!("{HEAD}.scale")).unwrap().0 = Dtype::F16), "expected BF16 scales"),
        (refusal(|_, c| c["quantization_config"]["group_size"] = json!(128)), "has shape"),
        (refusal(|_, c| c["quantization_config"] = Value::Null), "expected a quantization_config of scheme m or l"),
    ] {
        assert!(error.contains(words), "{error}");
    }
}
