//! Speculation is not observable: tokens and log-probabilities of every drafter and budget are those of plain decoding,
//! greedy and sampled, and an answer ends where it should.

use super::*;
use crate::{
    Reference,
    fixture::{fixture_dir, ids, nested, state_after, straw_tiny},
};
use specdec::{Budget, DrafterKind, RequestError, SamplingOptions, SamplingParams};

fn request(prompt: &[u32], max_tokens: usize, drafter: DrafterKind, budget: usize) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt.to_vec(),
        max_tokens,
        stop_tokens: vec![],
        sampling: SamplingParams::greedy(),
        drafter,
        budget: Budget::new(budget).unwrap(),
    }
}

fn run(model: &Reference, request: &GenerateRequest) -> Generation {
    let mut streamed = vec![];
    let answer = model.generate(request, &mut |token| {
        streamed.push(token);
        ControlFlow::Continue(())
    });
    let answer = answer.unwrap();
    assert_eq!(answer.tokens, streamed, "what is streamed is what is returned");
    let emitted: usize = answer.rounds.iter().map(|r| r.emitted).sum();
    assert_eq!(emitted + 1, answer.tokens.len(), "one token comes from the prompt pass, all others from rounds");
    for (i, round) in answer.rounds.iter().enumerate() {
        assert!(round.tree.drafted() <= round.budget.nodes(), "round {i}: {} nodes", round.tree.drafted());
        let before: usize = answer.rounds[..i].iter().map(|r| r.emitted).sum();
        assert_eq!(round.position as usize, request.prompt.len() + before, "round {i}: the root's position");
        assert_eq!(round.tree.tokens()[0], answer.tokens[before].id, "round {i}: the root is the last emitted token");
    }
    answer
}

fn samplings() -> [SamplingParams; 3] {
    let warm = SamplingOptions { temperature: 0.7, top_k: 40, top_p: 0.95, seed: 7, ..Default::default() };
    let hot =
        SamplingOptions { temperature: 1.0, seed: 11, presence_penalty: 0.5, repetition_penalty: 1.1, ..Default::default() };
    [SamplingOptions::default(), warm, hot].map(|options| SamplingParams::new(options).unwrap())
}

/// All requests of a model agree with plain decoding; returns accepted drafts per drafter, so that a test can ask that
/// something was accepted at all.
fn unobservable(model: &Reference, prompt: &[u32], max_tokens: usize, budgets: &[usize]) -> Vec<(DrafterKind, usize)> {
    let mut accepted: Vec<_> = model.drafters().into_iter().map(|kind| (kind, 0)).collect();
    for sampling in samplings() {
        let plain = run(model, &GenerateRequest { sampling, ..request(prompt, max_tokens, DrafterKind::Off, 0) });
        for (drafter, count) in accepted.iter_mut().filter(|(kind, _)| *kind != DrafterKind::Off) {
            for &budget in budgets {
                let answer = run(model, &GenerateRequest { sampling, ..request(prompt, max_tokens, *drafter, budget) });
                let what = format!("{drafter}, budget {budget}, temperature {}", sampling.temperature);
                assert_eq!(answer.tokens, plain.tokens, "{what}");
                assert_eq!(answer.finish_reason, plain.finish_reason, "{what}");
                *count += answer.accepted();
            }
        }
    }
    accepted
}

#[test]
fn no_drafter_or_budget_changes_a_bit_of_the_fixtures_answers() {
    let accepted = unobservable(nested(), &ids::<u32>("/prompt64"), 40, &[3, 8, 16, 32]);
    let of = |kind| accepted.iter().find(|a| a.0 == kind).map(|a| a.1);
    assert!(of(DrafterKind::Mtp) > Some(40), "{accepted:?}");
    assert_eq!(accepted.len(), 3);
}

/// The fixture's long greedy answer repeats a few token pairs, so the n-gram drafter has something to say.
#[test]
fn copied_drafts_change_nothing() {
    let prompt: Vec<u32> = ids("/prompt64");
    let answer = run(nested(), &request(&prompt, 128, DrafterKind::Ngram, 8));
    let tokens: Vec<u32> = answer.tokens.iter().map(|t| t.id).collect();
    assert_eq!(tokens, ids::<u32>("/greedy128/tokens"));
    assert!(answer.drafted() > 0);
}

/// The chat form of "Tom has 12 apples and buys 7 more. How many apples does Tom have now?".
const PROMPT: &[u32] = &[
    1, 342, 205, 5667, 592, 227, 23, 24, 1762, 347, 1550, 227, 29, 927, 20, 756, 835, 1762, 585, 4879, 614, 1031, 37, 2, 205, 1,
    345, 205,
];

/// Few tokens, since a pass of this model takes a tenth of a second; the fixture covers the rest.
#[test]
fn no_drafter_or_budget_changes_a_bit_of_the_default_models_answers() {
    use DrafterKind::{Dflash, DflashTree, Mtp, Ngram, Weaver};
    let pairs = [(Ngram, 8), (Mtp, 3), (Dflash, 16), (DflashTree, 32), (Weaver, 3), (Weaver, 16), (Weaver, 32)];
    let [greedy, _, hot] = samplings();
    for (sampling, cap) in [(greedy, 10), (hot, 6)] {
        let plain = run(straw_tiny(), &GenerateRequest { sampling, ..request(PROMPT, cap, DrafterKind::Off, 0) });
        for (drafter, budget) in pairs {
            let answer = run(straw_tiny(), &GenerateRequest { sampling, ..request(PROMPT, cap, drafter, budget) });
            let what = format!("{drafter}, budget {budget}, temperature {}", sampling.temperature);
            assert_eq!(answer.tokens, plain.tokens, "{what}");
            if drafter != Ngram && sampling.is_greedy() {
                assert!(answer.accepted() > 0, "{what}: {} drafted, none accepted", answer.drafted());
            }
        }
    }
}

#[test]
fn every_sampled_token_is_the_choice_of_its_absolute_position() {
    let prompt: Vec<u32> = ids("/prompt64");
    for sampling in samplings() {
        let request = GenerateRequest { sampling, ..request(&prompt, 24, DrafterKind::Mtp, 8) };
        let answer: Vec<u32> = run(nested(), &request).tokens.iter().map(|t| t.id).collect();
        let logits = nested().logits(&[&prompt[..], &answer].concat()).unwrap();
        for (i, &token) in answer.iter().enumerate() {
            let (history, position) = (History { prompt: &prompt, answer: &answer[..i] }, prompt.len() + i);
            assert_eq!(choose(logits.row(position - 1), &sampling, &history, position as u64), token, "token {i}");
        }
    }
}

/// Negative penalties reward repetition by 2 and 2 per occurrence: twelve copies on the path outweigh any logit of the
/// fixture, and without the path nothing would.
#[test]
fn penalties_follow_the_path_of_every_row() {
    let rewards = SamplingOptions { presence_penalty: -2.0, frequency_penalty: -2.0, ..Default::default() };
    let sampling = SamplingParams::new(rewards).unwrap();
    let request = GenerateRequest { sampling, ..request(&ids::<u32>("/prompt64"), 20, DrafterKind::Off, 0) };
    let mut session = Session::new(&nested().target, Drafter::Off, &request).unwrap();
    session.prefill(&mut |_| ControlFlow::Continue(())).unwrap();
    let tree = DraftTree::chain(session.tokens[64], &[(9, 0.0); 12]).unwrap();
    let samples = session.verify(&tree, &Rows::tree(&tree, 64)).unwrap().samples;
    assert!(samples[0] != 9 && samples[12] == 9, "{samples:?}");
}

#[test]
fn state_after_rounds_is_the_state_of_plain_decoding() {
    for (drafter, budget) in [(DrafterKind::Off, 0), (DrafterKind::Mtp, 8), (DrafterKind::Ngram, 16)] {
        let prompt: Vec<u32> = ids("/prompt64");
        let request = request(&prompt, 30, drafter, budget);
        let mut session = Session::new(&nested().target, nested().drafter(drafter).unwrap(), &request).unwrap();
        session.prefill(&mut |_| ControlFlow::Continue(())).unwrap();
        while session.finish.is_none() {
            session.round(&mut |_| ControlFlow::Continue(())).unwrap();
            let committed = &session.tokens[..session.tokens.len() - 1];
            assert_eq!(session.state, state_after(&nested().target, committed), "{drafter}");
            if let Drafter::Mtp { state, .. } = &session.drafter {
                assert_eq!(state.cache.len(), committed.len(), "the head has a row per committed token");
            }
        }
    }
}

/// The head must be fed true hidden states after every round; its drafts are then those of a fresh start.
#[test]
fn a_drafter_after_rounds_is_a_drafter_fresh_from_a_prompt() {
    let prompt: Vec<u32> = ids("/prompt64");
    let first = request(&prompt, 30, DrafterKind::Mtp, 4);
    let answer = run(nested(), &first);
    let round = &answer.rounds[5];
    let mut longer = prompt.clone();
    longer.extend(answer.tokens.iter().map(|t| t.id).take(round.position as usize - prompt.len()));
    let fresh = run(nested(), &request(&longer, 30, DrafterKind::Mtp, 4));
    assert_eq!(fresh.rounds[0].tree, round.tree);
}

#[test]
fn a_stop_token_inside_an_accepted_block_ends_there() {
    let prompt: Vec<u32> = ids("/prompt64");
    let full = run(nested(), &request(&prompt, 40, DrafterKind::Mtp, 8));
    let inside = full.rounds.iter().position(|r| r.acceptance.accepted() >= 2).expect("a block of two");
    let before: usize = 1 + full.rounds[..inside].iter().map(|r| r.emitted).sum::<usize>();
    let stop = full.tokens[before].id;
    let end = full.tokens.iter().position(|t| t.id == stop).unwrap() + 1;
    for (drafter, budget) in [(DrafterKind::Off, 0), (DrafterKind::Mtp, 8), (DrafterKind::Mtp, 32)] {
        let request = GenerateRequest { stop_tokens: vec![stop], ..request(&prompt, 40, drafter, budget) };
        let answer = run(nested(), &request);
        assert_eq!(answer.tokens, full.tokens[..end]);
        assert_eq!(answer.finish_reason, FinishReason::Stop);
    }
}

#[test]
fn the_caller_may_end_an_answer_at_any_token() {
    let prompt: Vec<u32> = ids("/prompt64");
    let full = run(nested(), &request(&prompt, 20, DrafterKind::Mtp, 8));
    for cut in 1..=20 {
        let mut count = 0;
        let answer = nested().generate(&request(&prompt, 20, DrafterKind::Mtp, 8), &mut |_| {
            count += 1;
            if count == cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let answer = answer.unwrap();
        assert_eq!((&answer.tokens[..], answer.finish_reason), (&full.tokens[..cut], FinishReason::Stop));
    }
}

#[test]
fn token_caps_hold_and_nothing_is_drafted_beyond_them() {
    let prompt: Vec<u32> = ids("/prompt64");
    let full = run(nested(), &request(&prompt, 12, DrafterKind::Off, 0));
    for cap in 1..=12 {
        let answer = run(nested(), &request(&prompt, cap, DrafterKind::Mtp, 8));
        assert_eq!((&answer.tokens[..], answer.finish_reason), (&full.tokens[..cap], FinishReason::Length));
        for round in &answer.rounds {
            let last = round.position as usize + round.tree.max_depth();
            assert!(last < prompt.len() + cap - 1, "cap {cap}: a row at position {last} can emit nothing");
        }
    }
}

#[test]
fn the_context_is_never_exceeded() {
    let folder = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(fixture_dir().join("config.json")).unwrap();
    let config = config.replace("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 40");
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    std::fs::copy(fixture_dir().join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let model = Reference::load(folder.path()).unwrap();
    for length in [30, 37, 39] {
        let answer = run(&model, &request(&vec![5; length], 100, DrafterKind::Mtp, 32));
        assert_eq!((answer.tokens.len(), answer.finish_reason), (40 - length, FinishReason::Length));
        for round in &answer.rounds {
            assert!(round.position as usize + round.tree.max_depth() < 40);
        }
    }
    let refused = model.generate(&request(&[5; 40], 1, DrafterKind::Off, 0), &mut |_| ControlFlow::Continue(()));
    assert_eq!(refused.unwrap_err(), RequestError::PromptTooLong { found: 40, context: 40 }.into());
}
