//! What the door refuses, and that every refusal is one sentence.

use super::*;
use crate::fixture::{fixture_dir, nested};
use specdec::{Budget, SamplingParams};

fn sentence<T>(result: Result<T, ReferenceError>) -> String {
    let text = result.map(|_| ()).unwrap_err().to_string();
    assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
    text
}

fn generate(model: &Reference, prompt: &[u32], drafter: DrafterKind) -> Result<Generation, ReferenceError> {
    let request = GenerateRequest {
        prompt: prompt.to_vec(),
        max_tokens: 4,
        stop_tokens: vec![],
        sampling: SamplingParams::greedy(),
        drafter,
        budget: Budget::new(4).unwrap(),
    };
    model.generate(&request, &mut |_| ControlFlow::Continue(()))
}

#[test]
fn a_missing_drafter_is_answered_with_those_there_are() {
    assert_eq!(nested().drafters(), [DrafterKind::Off, DrafterKind::Ngram, DrafterKind::Mtp]);
    assert_eq!(
        sentence(generate(nested(), &[1], DrafterKind::Weaver)),
        "the model has no drafter weaver, expected one of off, ngram, mtp (set --drafter)"
    );
}

#[test]
fn tokens_and_trees_are_checked_at_the_door() {
    assert!(sentence(generate(nested(), &[], DrafterKind::Off)).contains("prompt is empty"));
    assert!(sentence(nested().logits(&[])).contains("prompt is empty"));
    assert!(sentence(nested().logits(&[1, 320])).contains("id 320, expected an id below the vocabulary size 320"));
    let tree = |root, token| DraftTree::new(root, &[(0, token, 0.0)]).unwrap();
    assert_eq!(
        sentence(nested().tree_logits(&[1, 2], &tree(3, 4))),
        "the tree's root is token 3, expected the prompt's last token 2"
    );
    assert!(sentence(nested().tree_logits(&[1, 2], &tree(2, 999))).contains("id 999"));
    assert_eq!(nested().tree_logits(&[2], &tree(2, 4)).unwrap(), nested().logits(&[2, 4]).unwrap());
    let context = nested().config().max_positions;
    assert!(sentence(nested().tree_logits(&vec![2; context], &tree(2, 4))).contains("fewer than the model's context"));
}

/// The fixture's folder with one file changed.
fn altered(file: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) -> Result<Reference, ReferenceError> {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        let bytes = std::fs::read(fixture_dir().join(name)).unwrap();
        let bytes = if name == file { change(bytes) } else { bytes };
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    Reference::load(folder.path())
}

fn replaced(from: &'static str, to: &'static str) -> impl Fn(Vec<u8>) -> Vec<u8> {
    move |bytes| {
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect("there");
        [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
    }
}

#[test]
fn a_damaged_model_folder_is_one_sentence() {
    assert!(altered("config.json", |bytes| bytes).is_ok());
    let absent = Path::new("/nonexistent/model");
    assert!(sentence(Reference::load(absent)).contains("/nonexistent/model/config.json: "));
    assert!(sentence(altered("config.json", |_| b"{".to_vec())).contains("expected a JSON object"));
    let truncated = |mut bytes: Vec<u8>| {
        bytes.truncate(bytes.len() - 100);
        bytes
    };
    assert!(sentence(altered("model.safetensors", truncated)).contains("is the file truncated?"));
    let renamed = replaced("layers.1.linear_attn.A_log", "layers.1.linear_attn.A_lag");
    assert!(sentence(altered("model.safetensors", renamed)).contains("layers.1.linear_attn.A_log is missing"));
    let narrower = replaced("\"intermediate_size\": 192", "\"intermediate_size\": 191");
    let text = sentence(altered("config.json", narrower));
    assert!(text.contains("mlp.gate_proj.weight has shape [192, 64], expected [191, 64]"), "{text}");
    let other = replaced("qwen3_5_text", "qwen9_text");
    assert!(sentence(altered("config.json", other)).contains("model_type \"qwen9_text\" is not supported"));
}

#[test]
fn nan_weights_are_named_with_their_place() {
    // The last two bytes of the file belong to a BF16 or F32 tensor whatever the order of tensors.
    let nan = |mut bytes: Vec<u8>| {
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        bytes
    };
    let text = sentence(altered("model.safetensors", nan));
    assert!(text.contains("holds NaN at element"), "{text}");
}
