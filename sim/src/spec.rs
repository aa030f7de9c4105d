//! Acceptance as it is written on the command line: `constant:0.8`, `positions:0.86,0.68,0.57`, `trace:FILE`, ...
//! Two definitions of a per-position figure are in use, so each has its own word. Reads no file.

use crate::{AcceptanceModel, Law, Scope, SimError};
use std::{path::PathBuf, str::FromStr};

/// Where acceptance comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum AcceptanceSpec {
    /// A parametric law.
    Model(AcceptanceModel),
    /// A recorded trace.
    Trace(PathBuf),
}

const FORMS: &str = "write constant:ALPHA, tau:TAU,DRAFTS (mean tokens per pass of a chain, bonus included), positions:S1,S2,... (share of rounds accepting each position), \
                     conditional:A1,A2,... (rate given the positions before), ranks:A11/A12,A21/A22,..., \
                     markov:EASY,HARD,EASY_SPAN,HARD_SPAN, beta:MEAN,CONC, beta-prompt:MEAN,CONC or trace:FILE; \
                     a last entry ... repeats the last position";

impl FromStr for AcceptanceSpec {
    type Err = SimError;
    fn from_str(text: &str) -> Result<Self, SimError> {
        let error = |reason: String| SimError::Spec { what: "acceptance", text: text.into(), reason };
        let (name, rest) = text.split_once(':').ok_or_else(|| error(format!("no colon found ({FORMS})")))?;
        if name == "trace" {
            return if rest.is_empty() { Err(error("no file after trace:".into())) } else { Ok(Self::Trace(rest.into())) };
        }
        let (list, repeats) = rest.strip_suffix(",...").map_or((rest, false), |l| (l, true));
        let rows: Result<Vec<Vec<f64>>, _> =
            list.split(',').map(|row| row.split('/').map(|n| n.trim().parse::<f64>()).collect()).collect();
        let rows = rows.map_err(|_| error(format!("{list:?} is not a list of numbers ({FORMS})")))?;
        let flat: Vec<f64> = rows.iter().flatten().copied().collect();
        if name != "ranks" && flat.len() != rows.len() {
            return Err(error(format!("a slash separates ranks, which only ranks: takes ({FORMS})")));
        }
        let law = match (name, &flat[..]) {
            ("constant", &[alpha]) if !repeats => Law::Constant { alpha },
            ("tau", &[tau, drafts]) if !repeats && drafts.fract() == 0.0 && (1.0..=1000.0).contains(&drafts) => {
                let model = AcceptanceModel::constant_from_tau(tau, drafts as usize);
                return model.map(Self::Model).map_err(|e| error(e.to_string()));
            }
            ("positions", _) => {
                return AcceptanceModel::from_survival(&flat, repeats).map(Self::Model).map_err(|e| error(e.to_string()));
            }
            ("conditional", _) => Law::Positions { conditional: flat, repeats },
            ("ranks", _) => Law::DepthRank { rates: rows, repeats },
            ("markov", &[easy, hard, easy_span, hard_span]) if !repeats => {
                Law::Markov { alpha: [easy, hard], leave: [1.0 / easy_span, 1.0 / hard_span] }
            }
            ("beta", &[mean, concentration]) if !repeats => Law::Beta { mean, concentration, scope: Scope::Round },
            ("beta-prompt", &[mean, concentration]) if !repeats => Law::Beta { mean, concentration, scope: Scope::Prompt },
            _ => return Err(error(format!("unknown law or wrong count of numbers ({FORMS})"))),
        };
        AcceptanceModel::new(law).map(Self::Model).map_err(|e| error(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn tau(text: &str, shape: &Shape) -> f64 {
        match text.parse().unwrap() {
            AcceptanceSpec::Model(model) => model.tau(shape),
            AcceptanceSpec::Trace(_) => panic!("{text} is no law"),
        }
    }

    #[test]
    fn shares_and_conditional_rates_are_two_words() {
        let chain = Shape::chain(3);
        assert!((tau("positions:0.86,0.68,0.57", &chain) - (1.0 + 0.86 + 0.68 + 0.57)).abs() < 1e-12);
        let product = 1.0 + 0.86 + 0.86 * 0.68 + 0.86 * 0.68 * 0.57;
        assert!((tau("conditional:0.86,0.68,0.57", &chain) - product).abs() < 1e-12);
        let rising = "positions:0.6,0.7".parse::<AcceptanceSpec>().unwrap_err().to_string();
        assert!(rising.contains("position 2 is 0.7, expected at most the share of the position before"), "{rising}");
    }

    #[test]
    fn a_list_ends_unless_it_says_that_it_goes_on() {
        assert!((tau("tau:4.25,7", &Shape::chain(7)) - 4.25).abs() < 1e-12);
        assert!((tau("conditional:0.5", &Shape::chain(2)) - 1.5).abs() < 1e-12);
        assert!((tau("conditional:0.5,...", &Shape::chain(2)) - 1.75).abs() < 1e-12);
        assert!((tau("ranks:0.5/0.2,0.4/0.3", &Shape::k_ary(2, 2)) - 1.7).abs() < 1e-12);
    }

    #[test]
    fn bad_specs_are_refused_with_a_sentence() {
        for (text, part) in [
            ("0.8", "no colon"),
            ("constant:1.2", "expected a probability"),
            ("constant:x", "not a list of numbers"),
            ("constant:0.5,0.6", "wrong count"),
            ("constant:NaN", "expected a probability"),
            ("ranks:0.8/0.3", "sum of rates at depth 1"),
            ("markov:0.9,0.5,0,10", "leaving a span"),
            ("markov:0.9,0.5,0.5,10", "leaving a span"),
            ("beta:1,3", "1 - mean"),
            ("beta:0.8,0", "concentration"),
            ("conditional:0.8/0.1", "slash"),
            ("trace:", "no file"),
            ("tau:9,7", "tau of a chain of 7 drafts is 9"),
            ("tau:2,0.5", "wrong count"),
            ("gauss:1", "unknown law"),
        ] {
            let error = text.parse::<AcceptanceSpec>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert_eq!("trace:a:b.jsonl".parse(), Ok(AcceptanceSpec::Trace("a:b.jsonl".into())));
    }
}
