//! What was asked for: the scheme, its options, and which tensor becomes what. Writes the words of `config.json`.
//! Knows names and shapes of tensors; nothing of numbers.

use super::codes::Width;
use crate::checkpoint::Entry;
use anyhow::{Result, ensure};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};

/// Number formats of `--scheme`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// 8-bit symmetric codes and 8-bit activations
    L,
    /// 4-bit codes with 4-bit zero points and 8-bit activations
    M,
    /// 8-bit symmetric codes, f32 activations, no Hadamard transform
    Q8,
}

/// How codes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// Every weight by itself
    Nearest,
    /// What rounding did to one input is made up for by later ones (needs --calibrate)
    Feedback,
}

/// Numbers that linears take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// 8-bit codes per row and group
    Int8,
    /// Weights are widened, activations stay f32
    F32,
}

/// Everything that decides the bytes of the copy, besides the model and the calibration text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Number format.
    pub scheme: Scheme,
    /// Block of the Hadamard transform; 0 means none.
    pub hadamard: usize,
    /// Inputs that share a scale.
    pub group: usize,
    /// What the copy says of activations.
    pub activations: Activations,
    /// How codes are chosen where calibration reaches.
    pub rounding: Rounding,
    /// Parts of names of tensors that have 8 bits in scheme M.
    pub eight: Vec<String>,
    /// Drafters are quantised too.
    pub drafters: bool,
}

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// Codes of this width.
    Quantised(Width),
    /// Byte for byte.
    Kept,
    /// Not copied.
    LeftOut,
}

impl Settings {
    /// Refuses what no engine reads.
    pub fn check(&self) -> Result<()> {
        ensure!(
            matches!(self.hadamard, 0 | 32),
            "the Hadamard transform has blocks of {}, expected 32, or 0 for none (set --hadamard)",
            self.hadamard
        );
        // A group must not cross the 1024 inputs of a chunk, nor a byte of two codes.
        ensure!(matches!(self.group, 32 | 64 | 128), "a group has {} inputs, expected 32, 64 or 128 (set --group)", self.group);
        ensure!(self.scheme != Scheme::Q8 || self.group == 64, "scheme q8 has groups of 64 inputs (leave out --group)");
        ensure!(
            self.scheme == Scheme::M || self.eight.is_empty(),
            "--eight-bit has no effect on a scheme of 8 bits (use --scheme m)"
        );
        Ok(())
    }

    /// Linears and the embedding are quantised; the two small gate projections of the delta rule feed an exponential and
    /// stay. A vision tower is left out: straw runs text. The multi-token-prediction head is a drafter.
    pub fn fate(&self, entry: &Entry) -> Fate {
        let name = entry.name.as_str();
        let gate = ["in_proj_a.", "in_proj_b."].iter().any(|g| name.contains(g));
        match entry.shape.len() {
            _ if name.starts_with("model.visual.") => Fate::LeftOut,
            _ if name.starts_with("mtp.") && !self.drafters => Fate::Kept,
            2 if name.ends_with(".weight") && !gate => Fate::Quantised(self.width(name)),
            _ => Fate::Kept,
        }
    }

    fn width(&self, name: &str) -> Width {
        let four = self.scheme == Scheme::M && !self.eight.iter().any(|part| name.contains(part));
        if four { Width::Four } else { Width::Eight }
    }

    /// `quantization_config` of `config.json`.
    pub fn config(&self) -> Value {
        let (bits, version) = match self.scheme {
            Scheme::L => (8, 2),
            Scheme::M => (4, 2),
            Scheme::Q8 => (8, 1),
        };
        let mut config = json!({
            "quant_method": "straw", "scheme": self.scheme, "version": version, "bits": bits, "group_size": self.group,
            "symmetric": self.scheme != Scheme::M
        });
        if self.scheme != Scheme::Q8 {
            config["hadamard"] = self.hadamard.into();
            config["activations"] = json!(self.activations);
        }
        config
    }
}
