//! What a user sees of the fast engine: answers that no drafter, budget, seed order, stop rule or earlier request changes.
//! Tokens and log-probabilities are compared bit by bit with plain decoding.

use crate::fast_models::*;
use fast::identity::{Grid, check};
use fast::{Engine, LoadOptions};
use specdec::{Budget, DrafterKind, FinishReason, GenerateRequest, SamplingOptions, SamplingParams, Token};
use std::ops::ControlFlow;

fn assert_identical(engine: &Engine, prompts: &[Vec<u32>], grid: &Grid) -> usize {
    let mut cases = 0;
    let different = check(engine, prompts, grid, &mut |_| cases += 1).unwrap();
    assert!(different.is_empty(), "{} of {cases} cases differ, the first: {:?}", different.len(), different[0]);
    cases
}

#[test]
fn drafters_and_budgets_change_no_bit_on_the_fixture() {
    let engine = fixture(1);
    let prompts = [fixture_ids(&["short12"]), fixture_ids(&["prompt64"])];
    let grid = Grid {
        drafters: vec![DrafterKind::Off, DrafterKind::Ngram, DrafterKind::Mtp],
        budgets: Budget::all().collect(),
        samplings: vec![SamplingParams::greedy(), sampled(0.7, u64::MAX)],
        max_tokens: 24,
        stop_tokens: vec![],
        auto: false,
    };
    assert_eq!(assert_identical(&engine, &prompts, &grid), 2 * 2 * 3 * 31);
}

#[test]
fn drafters_and_budgets_change_no_bit_on_straw_tiny() {
    let engine = straw(1);
    let prompts: Vec<Vec<u32>> = STRAW_PROMPTS[1..].iter().map(|p| p.to_vec()).collect();
    let grid = Grid {
        drafters: engine.drafters(),
        budgets: [3, 7, 16, 32].map(budget).to_vec(),
        samplings: vec![SamplingParams::greedy(), sampled(0.7, 11), sampled(1.0, 12)],
        max_tokens: 32,
        stop_tokens: vec![2],
        auto: true,
    };
    assert_eq!(assert_identical(&engine, &prompts, &grid), 2 * 3 * 6 * 5);
}

#[test]
fn every_drafter_lands_drafts_on_straw_tiny() {
    let engine = straw(1);
    for drafter in [DrafterKind::Mtp, DrafterKind::Dflash, DrafterKind::DflashTree, DrafterKind::Weaver] {
        for sampling in [SamplingParams::greedy(), sampled(0.7, 3)] {
            let request = GenerateRequest { drafter, budget: budget(16), sampling, ..request(STRAW_PROMPTS[1], 48) };
            let answer = run(&engine, &request);
            let per_pass = specdec::tokens_per_pass(&answer.rounds).unwrap();
            assert!(per_pass > 1.5, "{drafter}: {per_pass:.2} tokens per pass on an arithmetic answer");
        }
    }
}

#[test]
fn filters_and_penalties_are_followed_along_tree_paths() {
    let engine = straw(1);
    let filtered = SamplingOptions { temperature: 0.9, top_k: 40, top_p: 0.9, min_p: 0.02, seed: 4, ..Default::default() };
    let penalised =
        SamplingOptions { repetition_penalty: 1.3, presence_penalty: 0.5, frequency_penalty: 0.25, ..Default::default() };
    let both = SamplingOptions { temperature: 0.8, seed: 9, top_p: 0.95, ..penalised };
    let grid = Grid {
        drafters: vec![DrafterKind::Ngram, DrafterKind::Mtp, DrafterKind::Weaver],
        budgets: [3, 8, 32].map(budget).to_vec(),
        samplings: [filtered, penalised, both].map(|o| SamplingParams::new(o).unwrap()).to_vec(),
        max_tokens: 40,
        stop_tokens: vec![],
        auto: false,
    };
    assert_identical(&engine, &[STRAW_PROMPTS[1].to_vec()], &grid);
    let text = |options| {
        run(&engine, &GenerateRequest { sampling: SamplingParams::new(options).unwrap(), ..request(STRAW_PROMPTS[1], 40) })
    };
    assert_ne!(bits(&text(penalised)), bits(&text(SamplingOptions::default())), "penalties were ignored");
}

#[test]
fn threads_and_cache_types_keep_the_promise() {
    let prompts = [STRAW_PROMPTS[2].to_vec()];
    let grid = |engine: &Engine| Grid {
        drafters: engine.drafters(),
        budgets: [8, 32].map(budget).to_vec(),
        samplings: vec![SamplingParams::greedy(), sampled(1.0, 2)],
        max_tokens: 16,
        stop_tokens: vec![],
        auto: false,
    };
    let mut answers = vec![];
    for threads in [1, 2, 4] {
        let engine = straw(threads);
        assert_identical(&engine, &prompts, &grid(&engine));
        answers.push(bits(&run(&engine, &GenerateRequest { sampling: sampled(1.0, 2), ..request(&prompts[0], 24) })));
    }
    assert!(answers.windows(2).all(|w| w[0] == w[1]), "threads change an answer");
    let options = LoadOptions { threads: 2, kv: fast::KvType::Bf16, ..Default::default() };
    let rounded = Engine::load(&straw_folder(), &options).unwrap();
    assert_identical(&rounded, &prompts, &grid(&rounded));
}

#[test]
fn long_answers_stay_identical() {
    let engine = fixture(1);
    let grid = |drafters: &[DrafterKind], max_tokens| Grid {
        drafters: drafters.to_vec(),
        budgets: vec![budget(16)],
        samplings: vec![SamplingParams::greedy(), sampled(0.7, 21)],
        max_tokens,
        stop_tokens: vec![],
        auto: false,
    };
    assert_identical(&engine, &[fixture_ids(&["prompt64"])], &grid(&[DrafterKind::Ngram, DrafterKind::Mtp], 450));
    let engine = straw(1);
    assert_identical(&engine, &[STRAW_PROMPTS[0].to_vec()], &grid(&[DrafterKind::Weaver], 420));
}

#[test]
fn seeds_are_followed_and_neighbours_differ() {
    let engine = straw(1);
    let text = |seed| bits(&run(&engine, &GenerateRequest { sampling: sampled(1.0, seed), ..request(STRAW_PROMPTS[0], 30) }));
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
    assert_ne!(text(7), text(7 + (1 << 32)));
}

#[test]
fn a_stop_token_ends_the_answer_at_every_alignment() {
    let engine = straw(1);
    let plain = run(&engine, &request(STRAW_PROMPTS[1], 24));
    for end in 0..plain.tokens.len() {
        let stop = plain.tokens[end].id;
        let first = plain.tokens.iter().position(|t| t.id == stop).unwrap();
        for (drafter, nodes) in [(DrafterKind::Weaver, 16), (DrafterKind::Dflash, 8)] {
            let request =
                GenerateRequest { stop_tokens: vec![stop], drafter, budget: budget(nodes), ..request(STRAW_PROMPTS[1], 24) };
            let answer = run(&engine, &request);
            assert_eq!(bits(&answer), bits(&plain)[..=first], "stop at token {first}");
            assert_eq!(answer.finish_reason, FinishReason::Stop);
            let emitted: usize = answer.rounds.iter().map(|r| r.emitted).sum();
            assert_eq!(emitted + 1, answer.tokens.len(), "rounds count what the user received");
        }
    }
}

#[test]
fn the_caller_and_the_cap_end_an_answer_inside_a_block() {
    let engine = straw(1);
    let plain = run(&engine, &request(STRAW_PROMPTS[1], 20));
    for length in 1..=20 {
        let capped = GenerateRequest { drafter: DrafterKind::Weaver, budget: budget(16), ..request(STRAW_PROMPTS[1], length) };
        let answer = run(&engine, &capped);
        assert_eq!((bits(&answer), answer.finish_reason), (bits(&plain)[..length].to_vec(), FinishReason::Length));
        for round in &answer.rounds {
            let left = length - (round.position as usize + 1 - STRAW_PROMPTS[1].len());
            assert!(round.tree.max_depth() < left, "a draft that could never be emitted");
            assert!(round.tree.drafted() <= round.budget.nodes());
        }
        let mut seen = 0;
        let told = engine.generate(&GenerateRequest { max_tokens: 20, ..capped }, &mut |_| {
            seen += 1;
            if seen == length { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let told = told.unwrap();
        assert_eq!((bits(&told), told.finish_reason, seen), (bits(&plain)[..length].to_vec(), FinishReason::Stop, length));
    }
}

#[test]
fn answers_reach_exactly_the_end_of_the_context() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.safetensors", "generation_config.json"] {
        std::fs::copy(fixture_folder().join(name), folder.path().join(name)).unwrap();
    }
    let config = std::fs::read_to_string(fixture_folder().join("config.json")).unwrap();
    let config = config.replace("\"max_position_embeddings\": 4096", "\"max_position_embeddings\": 40");
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let small = Engine::load(folder.path(), &LoadOptions::default()).unwrap();
    assert_eq!(small.config().max_positions, 40);
    let (large, prompt) = (fixture(1), fixture_ids(&["long200"]));
    for length in [1, 12, 30, 38, 39] {
        let plain = run(&large, &request(&prompt[..length], 40 - length));
        for (drafter, nodes) in [(DrafterKind::Off, 0), (DrafterKind::Mtp, 3), (DrafterKind::Mtp, 32), (DrafterKind::Ngram, 32)] {
            let request = GenerateRequest { drafter, budget: budget(nodes), ..request(&prompt[..length], 1000) };
            let answer = run(&small, &request);
            assert_eq!((bits(&answer), answer.finish_reason), (bits(&plain), FinishReason::Length), "{length} {drafter} {nodes}");
        }
    }
    let full = small.generate(&request(&prompt[..40], 1), &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(full.contains("context of 40"), "{full}");
}

#[test]
fn requests_leave_nothing_behind() {
    let engine = straw(1);
    let wanted = GenerateRequest { drafter: DrafterKind::Weaver, budget: budget(16), ..request(STRAW_PROMPTS[0], 30) };
    let fresh = run(&straw(1), &wanted);
    let missing = GenerateRequest { prompt: vec![9999], ..wanted.clone() };
    assert!(engine.generate(&missing, &mut |_| ControlFlow::Continue(())).is_err());
    let again = run(&engine, &wanted);
    assert_eq!(bits(&again), bits(&fresh), "after a refused request");
    let mut left = 7;
    let abort = &mut |_: Token| {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    engine.generate(&GenerateRequest { prompt: STRAW_PROMPTS[1].to_vec(), ..wanted.clone() }, abort).unwrap();
    for (after, answer) in [("an aborted", run(&engine, &wanted)), ("a finished", run(&engine, &wanted))] {
        assert_eq!(bits(&answer), bits(&fresh), "after {after} request");
        let counts = |g: &specdec::Generation| (g.drafted(), g.accepted(), g.rounds.len());
        assert_eq!(counts(&answer), counts(&fresh), "after {after} request the drafter behaves differently");
    }
}

#[test]
fn requests_from_several_threads_do_not_mix() {
    let engine = straw(1);
    let wanted: Vec<GenerateRequest> = STRAW_PROMPTS
        .iter()
        .map(|p| GenerateRequest { drafter: DrafterKind::Weaver, budget: budget(8), sampling: sampled(0.7, 5), ..request(p, 20) })
        .collect();
    let alone: Vec<_> = wanted.iter().map(|r| bits(&run(&engine, r))).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = wanted.iter().map(|r| scope.spawn(|| bits(&run(&engine, r)))).collect();
        handles.into_iter().map(|h| h.join().unwrap()).collect()
    });
    assert_eq!(together, alone);
}

#[test]
fn a_drafter_that_is_missing_is_named_with_what_there_is() {
    let engine = fixture(1);
    let request = GenerateRequest { drafter: DrafterKind::Weaver, budget: budget(8), ..request(&[1], 4) };
    let error = engine.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert_eq!(error, "drafter weaver is not in this model, which has off, ngram, mtp (set --drafter)");
}
