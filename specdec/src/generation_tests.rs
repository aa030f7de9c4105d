//! Requests at the edges of vocabulary and context, and the counts of an answer.

use super::*;
use crate::{Acceptance, DraftTree, StageTimes};

fn model() -> ModelConfig {
    let json = include_str!("../../tests/fixtures/qwen35-tiny-a/flat/config.json");
    ModelConfig::from_json(json, None).expect("the fixture's config is fine")
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        prompt,
        max_tokens,
        stop_tokens: vec![],
        sampling: SamplingParams::greedy(),
        drafter: DrafterKind::Off,
        budget: Budget::OFF,
    }
}

#[test]
fn room_is_what_the_context_leaves() {
    let context = model().max_positions;
    assert_eq!(request(vec![1; context - 2], 100).check(&model()), Ok(2));
    assert_eq!(request(vec![1; 4], 100).check(&model()), Ok(100));
    let too_long = RequestError::PromptTooLong { found: context, context };
    assert_eq!(request(vec![1; context], 1).check(&model()), Err(too_long));
}

#[test]
fn bad_requests_are_refused_with_a_sentence() {
    assert_eq!(request(vec![], 1).check(&model()), Err(RequestError::EmptyPrompt));
    assert_eq!(request(vec![1], 0).check(&model()), Err(RequestError::NoTokens));
    let error = request(vec![1, 320], 1).check(&model()).unwrap_err();
    assert_eq!(error.to_string(), "prompt token 1 has id 320, expected an id below the vocabulary size 320");
    assert!("eagle".parse::<DrafterKind>().unwrap_err().to_string().contains("expected off, ngram"));
}

#[test]
fn names_of_drafters_round_trip() {
    for kind in DrafterKind::ALL {
        assert_eq!(kind.name().parse::<DrafterKind>(), Ok(kind));
        assert_eq!(serde_json::to_string(&kind).unwrap(), format!("{:?}", kind.name()));
    }
}

#[test]
fn acceptance_by_position_sums_to_the_total() {
    let round = |accepted: usize| RoundRecord {
        position: 0,
        budget: Budget::new(3).unwrap(),
        tree: DraftTree::chain(1, &[(2, -0.1), (3, -0.1), (4, -0.1)]).unwrap(),
        acceptance: Acceptance { path: (1..=accepted).collect(), next_token: 9 },
        emitted: accepted + 1,
        times: StageTimes::default(),
    };
    let answer = Generation {
        tokens: vec![],
        rounds: vec![round(3), round(0), round(1)],
        finish_reason: FinishReason::Length,
        prefill_s: 0.0,
        decode_s: 0.0,
    };
    assert_eq!((answer.drafted(), answer.accepted()), (9, 4));
    assert_eq!(answer.accepted_by_position(), [2, 1, 1]);
}
