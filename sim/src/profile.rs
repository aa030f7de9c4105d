//! Hardware profiles and measured verification curves, read from data files in which every number names its source.
//! Turns a profile and a model's size into a roofline. Knows no acceptance.

use crate::{
    CostModel, ModelSize, SimError,
    cost::{ContextCost, DraftCost, Roofline, Staircase, VerifyCost},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How far a number can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The maker's or a paper's figure.
    Published,
    /// Somebody ran it.
    Measured,
    /// Scaled from another chip, or not re-read.
    Estimated,
}

/// A number and where it comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantity {
    /// In the unit of the field's name.
    pub value: f64,
    /// Trust.
    pub evidence: Evidence,
    /// Source.
    pub source: String,
}

/// Llama-2-7B Q4_0 in llama.cpp: the one benchmark that most machines have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Llama7b {
    /// pp512.
    pub prefill_tokens_per_s: f64,
    /// tg128.
    pub decode_tokens_per_s: f64,
    /// Source.
    pub source: String,
}

/// One machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name on the command line.
    pub name: String,
    /// Memory bandwidth.
    pub bandwidth_gb_s: Quantity,
    /// Bandwidth that a read test reaches.
    #[serde(default)]
    pub readable_gb_s: Option<Quantity>,
    /// Dense half-precision matrix rate.
    #[serde(default)]
    pub fp16_tflops: Option<Quantity>,
    /// Dense int8 matrix rate.
    #[serde(default)]
    pub int8_tops: Option<Quantity>,
    /// Anchor benchmark.
    #[serde(default)]
    pub llama2_7b_q4_0: Option<Llama7b>,
}

/// Number format of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// int8 multiplications.
    Int8,
    /// Half precision.
    Fp16,
}

/// Weights of Llama-2-7B, for rates from its prefill benchmark.
const LLAMA2_7B_WEIGHTS: f64 = 6.74e9;

impl Profile {
    /// Every machine of the data file.
    pub fn all() -> Vec<Self> {
        serde_json::from_str(include_str!("../profiles/hardware.json")).expect("the embedded profiles are tested")
    }

    /// By name. Error: unknown, with all names.
    pub fn named(name: &str) -> Result<Self, SimError> {
        let all = Self::all();
        let known = all.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        all.into_iter().find(|p| p.name == name).ok_or_else(|| SimError::UnknownProfile { name: name.into(), known })
    }

    /// Multiply-adds per second: the format's rate where known, otherwise what Llama-2-7B's prefill reached (a lower bound of
    /// the machine, a fair guess of an engine). Error: neither is known.
    pub fn macs_per_s(&self, arithmetic: Arithmetic) -> Result<f64, SimError> {
        let rate = match arithmetic {
            Arithmetic::Int8 => self.int8_tops.as_ref().or(self.fp16_tflops.as_ref()),
            Arithmetic::Fp16 => self.fp16_tflops.as_ref(),
        };
        let prefill = self.llama2_7b_q4_0.as_ref().map(|l| l.prefill_tokens_per_s * LLAMA2_7B_WEIGHTS);
        rate.map(|q| q.value * 1e12 / 2.0).or(prefill).ok_or_else(|| SimError::Table {
            name: self.name.clone(),
            reason: "no matrix rate is known (measure V(n) and give it as a table)".into(),
        })
    }

    /// The roofline of a model here. `efficiency` in (0, 1] is the share of bandwidth and rate an engine reaches.
    pub fn roofline(
        &self,
        model: &ModelSize,
        arithmetic: Arithmetic,
        row_tile: usize,
        efficiency: f64,
    ) -> Result<CostModel, SimError> {
        let bytes_per_s = self.bandwidth_gb_s.value * 1e9 * efficiency;
        let macs_per_s = self.macs_per_s(arithmetic)? * efficiency;
        let roofline = Roofline {
            weight_bytes: model.weight_bytes,
            weights: model.weights,
            head_bytes: model.head_bytes,
            head_weights: model.head_weights,
            bytes_per_s,
            macs_per_s,
            row_tile,
            fixed_s: 2.0 * model.state_bytes / bytes_per_s,
        };
        let context = ContextCost {
            token_s: model.kv_bytes_per_token / bytes_per_s,
            row_token_s: model.attention_macs / macs_per_s,
            draft_token_s: 0.0,
        };
        let (draft, drafters) = (DraftCost::default(), BTreeMap::new());
        CostModel { verify: VerifyCost::Roofline(roofline), draft, drafters, round_s: 0.0, switch_s: 0.0, context }.checked()
    }
}

/// A published verification curve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredCurve {
    /// What was run.
    pub target: String,
    /// Where.
    pub machine: String,
    /// Who says so.
    pub source: String,
    /// V(n).
    pub table: Staircase,
}

impl MeasuredCurve {
    /// Every curve of the data file.
    pub fn all() -> Vec<Self> {
        serde_json::from_str(include_str!("../profiles/curves.json")).expect("the embedded curves are tested")
    }

    /// By the table's name. Error: unknown, with all names.
    pub fn named(name: &str) -> Result<Self, SimError> {
        let all = Self::all();
        let known = all.iter().map(|c| c.table.name.as_str()).collect::<Vec<_>>().join(", ");
        all.into_iter().find(|c| c.table.name == name).ok_or_else(|| SimError::UnknownProfile { name: name.into(), known })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_names_its_source() {
        let profiles = Profile::all();
        for p in &profiles {
            let quantities = [Some(&p.bandwidth_gb_s), p.readable_gb_s.as_ref(), p.fp16_tflops.as_ref(), p.int8_tops.as_ref()];
            for q in quantities.into_iter().flatten() {
                assert!(q.value > 0.0 && q.source.len() > 8, "{}: {q:?}", p.name);
            }
            assert!(p.llama2_7b_q4_0.as_ref().is_none_or(|l| l.source.len() > 8), "{}", p.name);
        }
        let mut names: Vec<&str> = profiles.iter().map(|p| p.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), profiles.len());
    }

    #[test]
    fn every_curve_is_a_valid_staircase() {
        for curve in MeasuredCurve::all() {
            assert!(curve.source.len() > 8);
            assert!(curve.table.clone().checked().is_ok(), "{}", curve.table.name);
        }
    }

    /// Decoding Llama-2-7B Q4_0 (3.56 GiB file) never beats the bandwidth on any machine of the table: a wrong unit would show.
    #[test]
    fn no_machine_reads_faster_than_its_memory() {
        let bytes = 3.56 * f64::powi(1024.0, 3);
        for p in Profile::all() {
            if let Some(l) = &p.llama2_7b_q4_0 {
                let share = l.decode_tokens_per_s * bytes / (p.bandwidth_gb_s.value * 1e9);
                assert!((0.4..1.0).contains(&share), "{}: {share}", p.name);
            }
        }
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let error = Profile::named("m9").unwrap_err().to_string();
        assert!(error.contains("m5-max") && error.contains("h200") && error.contains("dgx-spark"), "{error}");
        assert!(Profile::named("dgx-spark").unwrap().macs_per_s(Arithmetic::Int8).is_err());
        assert!(Profile::named("m1").unwrap().macs_per_s(Arithmetic::Fp16).is_ok());
    }
}
