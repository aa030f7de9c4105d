//! A request for tokens and the answer with its rounds: what both engines take and return.
//! Token ids only; text, templates and stop strings belong to the caller, who may end a generation at any token.

use crate::{Budget, ModelConfig, RoundRecord, SamplingParams};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Who proposes drafts. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrafterKind {
    /// Nobody: plain decoding.
    Off,
    /// The longest earlier match of the last tokens, continued as a chain.
    Ngram,
    /// The model's multi-token-prediction head, chained.
    Mtp,
    /// DFlash's most probable token at each position, as a chain.
    Dflash,
    /// The best-first tree over DFlash's independent positions.
    DflashTree,
    /// DFlash's shortlists rescored along the path by Weaver, as a best-first tree.
    Weaver,
}

impl DrafterKind {
    /// All kinds, in the order of the help text.
    pub const ALL: [Self; 6] = [Self::Off, Self::Ngram, Self::Mtp, Self::Dflash, Self::DflashTree, Self::Weaver];

    /// The name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Ngram => "ngram",
            Self::Mtp => "mtp",
            Self::Dflash => "dflash",
            Self::DflashTree => "dflash-tree",
            Self::Weaver => "weaver",
        }
    }
}

impl fmt::Display for DrafterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DrafterKind {
    type Err = RequestError;
    fn from_str(text: &str) -> Result<Self, RequestError> {
        Self::ALL.into_iter().find(|k| k.name() == text).ok_or_else(|| RequestError::UnknownDrafter(text.into()))
    }
}

/// What to generate.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest {
    /// Token ids of the prompt; not empty.
    pub prompt: Vec<u32>,
    /// Tokens to emit at most; clipped to what the context holds.
    pub max_tokens: usize,
    /// Tokens that end the answer. The end token itself is emitted as the last one.
    pub stop_tokens: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Who drafts.
    pub drafter: DrafterKind,
    /// Nodes drafted per round.
    pub budget: Budget,
}

impl GenerateRequest {
    /// Checks the request against a model and returns the number of tokens it may emit:
    /// at most `max_tokens`, and no position at or beyond the model's context.
    ///
    /// Errors: empty prompt, token id outside the vocabulary, a prompt that leaves no room, a cap of 0 tokens.
    pub fn check(&self, model: &ModelConfig) -> Result<usize, RequestError> {
        let context = model.max_positions;
        if self.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        if self.max_tokens == 0 {
            return Err(RequestError::NoTokens);
        }
        if let Some(index) = self.prompt.iter().position(|&t| t as usize >= model.vocab_size) {
            return Err(RequestError::TokenOutOfRange { token: self.prompt[index], index, vocab: model.vocab_size });
        }
        if self.prompt.len() >= context {
            return Err(RequestError::PromptTooLong { found: self.prompt.len(), context });
        }
        Ok(self.max_tokens.min(context - self.prompt.len()))
    }
}

/// One emitted token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Token {
    /// Token id.
    pub id: u32,
    /// Log-probability under the target's raw logits: temperature 1, before penalties and filters.
    pub log_prob: f32,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// A stop token, or the caller said stop (a stop string).
    Stop,
    /// The token cap or the end of the context.
    Length,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// Emitted tokens in order, an end token included.
    pub tokens: Vec<Token>,
    /// One record per target pass after the prompt pass.
    pub rounds: Vec<RoundRecord>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Seconds of the prompt pass, up to the first token.
    pub prefill_s: f64,
    /// Seconds from the first token to the last.
    pub decode_s: f64,
}

impl Generation {
    /// Drafted nodes over all rounds.
    pub fn drafted(&self) -> usize {
        self.rounds.iter().map(|r| r.tree.drafted()).sum()
    }

    /// Accepted drafts over all rounds, as the target decided, whether or not the answer ended inside the path.
    pub fn accepted(&self) -> usize {
        self.rounds.iter().map(|r| r.acceptance.accepted()).sum()
    }

    /// `[d]` = rounds that accepted at least `d + 1` drafts. What follows the first refusal is never counted, so the sum
    /// is [`accepted`](Self::accepted).
    pub fn accepted_by_position(&self) -> Vec<usize> {
        let longest = self.rounds.iter().map(|r| r.acceptance.accepted()).max().unwrap_or(0);
        (0..longest).map(|d| self.rounds.iter().filter(|r| r.acceptance.accepted() > d).count()).collect()
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// No prompt.
    #[error("the prompt is empty, expected at least one token (give a text with -m)")]
    EmptyPrompt,
    /// A cap of zero.
    #[error("the token cap is 0, expected at least 1 (set --max-tokens)")]
    NoTokens,
    /// An id the model has no row for.
    #[error("prompt token {index} has id {token}, expected an id below the vocabulary size {vocab}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Its place in the prompt.
        index: usize,
        /// Rows of the embedding.
        vocab: usize,
    },
    /// No room for an answer.
    #[error("the prompt has {found} tokens, expected fewer than the model's context of {context} (shorten the prompt)")]
    PromptTooLong {
        /// Prompt tokens.
        found: usize,
        /// Positions of the model.
        context: usize,
    },
    /// Not one of the drafters.
    #[error("drafter {0:?} is unknown, expected off, ngram, mtp, dflash, dflash-tree or weaver (set --drafter)")]
    UnknownDrafter(String),
}

#[cfg(test)]
#[path = "generation_tests.rs"]
mod tests;
