//! How a token is chosen from logits: temperature, filters, penalties, seed. States the order in which they apply, once,
//! for every engine; computes nothing.

use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// What a user asks for. Checked by [`SamplingParams::new`].
///
/// The law of the next token is made from the logits in this order:
/// 1. penalties: repetition (a logit above 0 is divided, one of at most 0 is multiplied, for every token of prompt or
///    answer), then presence and frequency (subtracted, for tokens of the answer only);
/// 2. division by the temperature;
/// 3. top-k: the k largest, equal logits by rising id;
/// 4. top-p: of the renormalised rest, in falling order (equal: rising id), the shortest prefix with at least mass p;
/// 5. min-p: of those, tokens with at least min-p times the largest probability;
/// 6. renormalisation.
///
/// Temperature 0 is greedy: the largest logit after penalties, ties to the lowest id; the filters then change nothing.
/// The token is chosen by Gumbel-max over the law with the noise of its absolute position ([`crate::philox::TokenNoise`]).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingOptions {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all tokens.
    pub top_k: usize,
    /// In (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// In [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Above 0; 1 changes nothing.
    pub repetition_penalty: f32,
    /// In [-2, 2]; 0 changes nothing.
    pub presence_penalty: f32,
    /// In [-2, 2]; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Seed of the noise.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

/// Sampling options whose ranges hold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "SamplingOptions", into = "SamplingOptions")]
pub struct SamplingParams(SamplingOptions);

impl SamplingParams {
    /// Checks every range. Error: the first option outside its range, by its name on the command line.
    pub fn new(options: SamplingOptions) -> Result<Self, SamplingError> {
        let o = &options;
        let checks = [
            ("temperature", o.temperature, (0.0..=100.0).contains(&o.temperature), "0 to 100 (0 is greedy)"),
            ("top-p", o.top_p, o.top_p > 0.0 && o.top_p <= 1.0, "above 0 and at most 1"),
            ("min-p", o.min_p, (0.0..=1.0).contains(&o.min_p), "0 to 1"),
            (
                "repetition-penalty",
                o.repetition_penalty,
                o.repetition_penalty > 0.0 && o.repetition_penalty.is_finite(),
                "above 0 (1 is off)",
            ),
            ("presence-penalty", o.presence_penalty, (-2.0..=2.0).contains(&o.presence_penalty), "-2 to 2"),
            ("frequency-penalty", o.frequency_penalty, (-2.0..=2.0).contains(&o.frequency_penalty), "-2 to 2"),
        ];
        for (option, found, fine, expected) in checks {
            if !fine {
                return Err(SamplingError { option, found, expected });
            }
        }
        Ok(Self(options))
    }

    /// Temperature 0, nothing else.
    pub fn greedy() -> Self {
        Self(SamplingOptions::default())
    }

    /// True at temperature 0.
    pub fn is_greedy(&self) -> bool {
        self.0.temperature == 0.0
    }

    /// True when earlier tokens change the logits.
    pub fn has_penalties(&self) -> bool {
        self.0.repetition_penalty != 1.0 || self.0.presence_penalty != 0.0 || self.0.frequency_penalty != 0.0
    }
}

impl Deref for SamplingParams {
    type Target = SamplingOptions;
    fn deref(&self) -> &SamplingOptions {
        &self.0
    }
}

impl TryFrom<SamplingOptions> for SamplingParams {
    type Error = SamplingError;
    fn try_from(options: SamplingOptions) -> Result<Self, SamplingError> {
        Self::new(options)
    }
}

impl From<SamplingParams> for SamplingOptions {
    fn from(params: SamplingParams) -> Self {
        params.0
    }
}

/// An option outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{option} is {found}, expected {expected} (set --{option})")]
pub struct SamplingError {
    option: &'static str,
    found: f32,
    expected: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_at_the_door() {
        let ok = SamplingOptions { temperature: 0.7, top_k: 40, top_p: 0.9, min_p: 0.05, ..Default::default() };
        assert!(SamplingParams::new(ok).is_ok());
        for bad in [
            SamplingOptions { temperature: -0.1, ..ok },
            SamplingOptions { temperature: f32::NAN, ..ok },
            SamplingOptions { temperature: f32::INFINITY, ..ok },
            SamplingOptions { top_p: 0.0, ..ok },
            SamplingOptions { top_p: 1.1, ..ok },
            SamplingOptions { min_p: -0.1, ..ok },
            SamplingOptions { repetition_penalty: 0.0, ..ok },
            SamplingOptions { presence_penalty: 3.0, ..ok },
            SamplingOptions { frequency_penalty: f32::NAN, ..ok },
        ] {
            assert!(SamplingParams::new(bad).is_err(), "{bad:?}");
        }
        let error = SamplingParams::new(SamplingOptions { top_p: 1.5, ..ok }).unwrap_err();
        assert_eq!(error.to_string(), "top-p is 1.5, expected above 0 and at most 1 (set --top-p)");
    }

    #[test]
    fn unknown_options_in_files_are_refused() {
        assert!(serde_json::from_str::<SamplingParams>(r#"{"temperature":0.5,"topk":3}"#).is_err());
        assert!(serde_json::from_str::<SamplingParams>(r#"{"temperature":-1}"#).is_err());
    }
}
