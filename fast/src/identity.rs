//! The promise, checked: every drafter and budget must emit the tokens and log-probabilities of plain decoding, bit by bit.
//! Runs any grid over any prompts; knows nothing of why two runs could differ.

use crate::{Engine, FastError};
use serde::{Deserialize, Serialize};
use specdec::{Budget, DrafterKind, GenerateRequest, SamplingParams, Token};
use std::ops::ControlFlow;

/// What is compared with plain decoding.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Drafters; those that the model lacks are an error.
    pub drafters: Vec<DrafterKind>,
    /// Budgets.
    pub budgets: Vec<Budget>,
    /// Sampling options.
    pub samplings: Vec<SamplingParams>,
    /// Tokens of an answer at most.
    pub max_tokens: usize,
    /// Tokens that end an answer.
    pub stop_tokens: Vec<u32>,
    /// Also run with the budget chosen per round.
    pub auto: bool,
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Index of the prompt.
    pub prompt: usize,
    /// Who drafted.
    pub drafter: DrafterKind,
    /// Nodes per round; `None` where the engine chose.
    pub budget: Option<Budget>,
    /// Temperature.
    pub temperature: f32,
    /// Tokens compared.
    pub tokens: usize,
    /// Target passes after the prompt pass.
    pub passes: usize,
    /// Index of the first token whose id or log-probability differs; the shorter answer's length where one is longer.
    pub first_difference: Option<usize>,
}

/// Runs the grid. Every finished case is shown to `each`; the result holds those that differ, so an empty one is a pass.
///
/// Errors: as [`Engine::generate`].
pub fn check(engine: &Engine, prompts: &[Vec<u32>], grid: &Grid, each: &mut dyn FnMut(&Case)) -> Result<Vec<Case>, FastError> {
    let mut different = vec![];
    for (index, prompt) in prompts.iter().enumerate() {
        for &sampling in &grid.samplings {
            let request = |drafter, budget| GenerateRequest {
                prompt: prompt.clone(),
                max_tokens: grid.max_tokens,
                stop_tokens: grid.stop_tokens.clone(),
                sampling,
                drafter,
                budget,
            };
            let plain = engine.generate(&request(DrafterKind::Off, Budget::OFF), &mut |_| ControlFlow::Continue(()))?;
            for &drafter in &grid.drafters {
                let fixed = grid.budgets.iter().map(|&budget| Some(budget));
                for budget in fixed.chain(grid.auto.then_some(None)) {
                    let go = &mut |_: Token| ControlFlow::Continue(());
                    let other = match budget {
                        Some(budget) => engine.generate(&request(drafter, budget), go)?,
                        None => engine.generate_auto(&request(drafter, Budget::OFF), go)?,
                    };
                    let case = Case {
                        prompt: index,
                        drafter,
                        budget,
                        temperature: sampling.temperature,
                        tokens: other.tokens.len(),
                        passes: other.rounds.len(),
                        first_difference: first_difference(&plain.tokens, &other.tokens),
                    };
                    each(&case);
                    if case.first_difference.is_some() {
                        different.push(case);
                    }
                }
            }
        }
    }
    Ok(different)
}

fn first_difference(a: &[Token], b: &[Token]) -> Option<usize> {
    let same = |(x, y): (&Token, &Token)| x.id == y.id && x.log_prob.to_bits() == y.log_prob.to_bits();
    let equal = a.iter().zip(b).take_while(|&pair| same(pair)).count();
    (equal < a.len().max(b.len())).then_some(equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_of_one_log_probability_is_a_difference() {
        let token = |log_prob| Token { id: 3, log_prob };
        let a = [token(-0.5), token(-0.25)];
        let b = [token(-0.5), token(f32::from_bits((-0.25f32).to_bits() + 1))];
        assert_eq!(first_difference(&a, &a), None);
        assert_eq!(first_difference(&a, &b), Some(1));
        assert_eq!(first_difference(&a, &a[..1]), Some(1));
        assert_eq!(first_difference(&[token(0.0)], &[token(-0.0)]), Some(0));
    }
}
