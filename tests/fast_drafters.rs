//! The fast engine's drafters against the reference's: the same trees, round by round. A drafter that computes something
//! else is merely accepted less, so only its drafts can show it.

use crate::fast_models::{STRAW_PROMPTS, budget, fixture_ids, request, sampled, straw_folder};
use fast::{Engine, LoadOptions};
use reference::Reference;
use specdec::{GenerateRequest, Generation, SamplingParams};
use std::{fs, ops::ControlFlow, path::Path};

/// Draft log-probabilities of an f32 engine against f64; logits differ by up to 1e-4 on these models.
const F32_LOG_PROBS: f32 = 1e-3;

/// The fixture's target with the random drafters whose numbers the reference reproduces.
fn random_drafters() -> tempfile::TempDir {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(fixtures.join("qwen35-tiny-a/flat").join(file), dir.path().join(file)).unwrap();
    }
    for drafter in ["dflash", "weaver"] {
        fs::create_dir(dir.path().join(drafter)).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixtures.join("drafters-tiny").join(drafter).join(file), dir.path().join(drafter).join(file)).unwrap();
        }
    }
    dir
}

fn assert_same_trees(case: &str, fast: &Generation, reference: &Generation) {
    assert_eq!(fast.rounds.len(), reference.rounds.len(), "{case}: rounds");
    for (round, (a, b)) in fast.rounds.iter().zip(&reference.rounds).enumerate() {
        assert_eq!(a.tree.tokens(), b.tree.tokens(), "{case}: tokens of round {round}");
        assert_eq!(a.tree.parents(), b.tree.parents(), "{case}: parents of round {round}");
        for (x, y) in a.tree.log_probs().iter().zip(b.tree.log_probs()) {
            assert!(
                (x - y).abs() <= F32_LOG_PROBS,
                "{case}: round {round} has log-probabilities {:?}, the reference {:?}",
                a.tree.log_probs(),
                b.tree.log_probs()
            );
        }
        assert_eq!(a.acceptance, b.acceptance, "{case}: acceptance of round {round}");
    }
}

fn compare(dir: &Path, prompts: &[Vec<u32>], samplings: &[SamplingParams], max_tokens: usize) {
    let fast = Engine::load(dir, &LoadOptions { threads: 2, ..Default::default() }).unwrap();
    let reference = Reference::load(dir).unwrap();
    assert_eq!(fast.drafters(), reference.drafters());
    for drafter in fast.drafters() {
        for (i, prompt) in prompts.iter().enumerate() {
            for sampling in samplings {
                let request = GenerateRequest { drafter, sampling: *sampling, budget: budget(12), ..request(prompt, max_tokens) };
                let ours = fast.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap();
                let exact = reference.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap();
                assert_same_trees(&format!("{drafter}, prompt {i}, T = {}", sampling.temperature), &ours, &exact);
            }
        }
    }
}

#[test]
fn random_drafters_propose_the_references_trees() {
    let dir = random_drafters();
    let prompts = [fixture_ids(&["tree_prompt32"]), fixture_ids(&["short12"])];
    compare(dir.path(), &prompts, &[SamplingParams::greedy(), sampled(0.8, 3)], 12);
}

#[test]
fn trained_drafters_propose_the_references_trees() {
    compare(&straw_folder(), &[STRAW_PROMPTS[1].to_vec()], &[SamplingParams::greedy()], 12);
}
