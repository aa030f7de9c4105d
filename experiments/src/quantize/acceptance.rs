//! Tokens per pass of every drafter before and after quantising: some prompts, greedy, in the fast engine. What is drafted
//! never changes what is emitted, so this is the whole cost of a quantised drafter.

use crate::{
    chat::{Chat, Message},
    draft::own_budget,
    engine::{Engine, EngineArgs, EngineKind},
    generate::block_depth,
    text::Text,
};
use anyhow::Result;
use serde::Serialize;
use specdec::{Budget, DrafterKind, GenerateRequest, SamplingParams, tokens_per_pass};
use std::{collections::BTreeMap, ops::ControlFlow, path::Path};

/// Of several kinds, because drafters are not alike in all.
const PROMPTS: [&str; 6] = [
    "Write a Python function that returns the n-th Fibonacci number.",
    "Mia has 14 pencils. She gives 5 away and buys 8 more. How many pencils does Mia have now?",
    "How do I list all files in a folder, the largest first?",
    "Tell me a short story about a lighthouse keeper.",
    "I would like to order a pizza for tonight, please.",
    "Write a function that checks whether a string is a palindrome.",
];
const MAX_TOKENS: usize = 64;

/// One drafter.
#[derive(Serialize)]
pub struct Acceptance {
    /// Who drafts.
    pub drafter: DrafterKind,
    /// Tokens per pass with the old model and the old drafter.
    pub before: f64,
    /// With the new model and the new drafter.
    pub after: f64,
}

/// Measures both folders. Drafters without weights are left out.
pub fn measure(before: &Path, after: &Path) -> Result<Vec<Acceptance>> {
    let old = tokens_per_passes(before)?;
    let new = tokens_per_passes(after)?;
    Ok(old.into_iter().zip(new).map(|((drafter, before), (_, after))| Acceptance { drafter, before, after }).collect())
}

fn tokens_per_passes(dir: &Path) -> Result<Vec<(DrafterKind, f64)>> {
    let engine = Engine::load(dir, &EngineArgs { engine: EngineKind::Fast, threads: None })?;
    let (text, chat) = (Text::load(dir)?, Chat::load(dir).ok());
    let encode = |prompt: &str| match &chat {
        Some(chat) => chat.encode(&[Message { role: "user".into(), content: prompt.into() }], &BTreeMap::new(), &text),
        None => text.encode_plain(prompt),
    };
    let depth = block_depth(dir, &engine);
    let weightless = [DrafterKind::Off, DrafterKind::Ngram];
    let mut found = Vec::new();
    for drafter in engine.drafters().into_iter().filter(|d| !weightless.contains(d)) {
        let nodes = own_budget(drafter).min(if drafter == DrafterKind::Dflash { depth.unwrap_or(15) } else { Budget::MAX });
        let mut rounds = Vec::new();
        for prompt in PROMPTS {
            let request = GenerateRequest {
                prompt: encode(prompt)?,
                max_tokens: MAX_TOKENS,
                stop_tokens: engine.config().eos_token_ids.clone(),
                sampling: SamplingParams::greedy(),
                drafter,
                budget: Budget::new(nodes)?,
            };
            rounds.extend(engine.generate(&request, &mut |_| ControlFlow::Continue(()))?.rounds);
        }
        found.push((drafter, tokens_per_pass(&rounds).unwrap_or(0.0)));
    }
    Ok(found)
}
