//! The models and prompts that the fast engine's tests run: the fixture with reference numbers, and straw-tiny.
//! Prompts are token ids, so that no tokenizer takes part.

use fast::{Engine, LoadOptions};
use safetensors::{Dtype, SafeTensors};
use specdec::{Budget, DrafterKind, GenerateRequest, Generation, SamplingOptions, SamplingParams};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// "Write a python function to merge two sorted lists", "Tom has 12 apples and buys 7 more. How many apples does Tom have
/// now?", "What does the command `tar` do?" in straw-tiny's chat template.
pub const STRAW_PROMPTS: [&[u32]; 3] = [
    &[1, 342, 205, 677, 273, 668, 477, 308, 4197, 1234, 4040, 621, 89, 2, 205, 1, 345, 205],
    &[
        1, 342, 205, 5667, 592, 227, 23, 24, 1762, 347, 1550, 227, 29, 927, 20, 756, 835, 1762, 585, 4879, 614, 1031, 37, 2, 205,
        1, 345, 205,
    ],
    &[1, 342, 205, 640, 585, 285, 665, 358, 4287, 70, 339, 37, 2, 205, 1, 345, 205],
];

pub fn fixture_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen35-tiny-a")
}

pub fn straw_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/straw-tiny")
}

pub fn fixture(threads: usize) -> Engine {
    Engine::load(&fixture_folder(), &LoadOptions { threads, ..Default::default() }).unwrap()
}

pub fn straw(threads: usize) -> Engine {
    Engine::load(&straw_folder(), &LoadOptions { threads, ..Default::default() }).unwrap()
}

/// The fixture's reference.json.
pub fn fixture_json() -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(fixture_folder().join("reference.json")).unwrap()).unwrap()
}

/// Token ids under a path of keys of the fixture's reference.json.
pub fn fixture_ids(path: &[&str]) -> Vec<u32> {
    let json = path.iter().fold(fixture_json(), |json, key| json[*key].clone());
    serde_json::from_value(json).unwrap()
}

/// A tensor of one of the fixture's reference files, as f64.
pub fn fixture_tensor(file: &str, name: &str) -> Vec<f64> {
    let bytes = std::fs::read(fixture_folder().join(file)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = tensors.tensor(name).unwrap();
    match tensor.dtype() {
        Dtype::F64 => tensor.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        Dtype::F32 => tensor.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        other => panic!("{file}: {name} has type {other:?}"),
    }
}

pub fn budget(nodes: usize) -> Budget {
    Budget::new(nodes).unwrap()
}

pub fn sampled(temperature: f32, seed: u64) -> SamplingParams {
    SamplingParams::new(SamplingOptions { temperature, seed, ..Default::default() }).unwrap()
}

/// A plain greedy request without stop tokens.
pub fn request(prompt: &[u32], max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt.to_vec(),
        max_tokens,
        stop_tokens: vec![],
        sampling: SamplingParams::greedy(),
        drafter: DrafterKind::Off,
        budget: Budget::OFF,
    }
}

pub fn run(engine: &Engine, request: &GenerateRequest) -> Generation {
    engine.generate(request, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Ids and bits of the log-probabilities.
pub fn bits(generation: &Generation) -> Vec<(u32, u32)> {
    generation.tokens.iter().map(|t| (t.id, t.log_prob.to_bits())).collect()
}

/// Bits of numbers.
pub fn number_bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}
