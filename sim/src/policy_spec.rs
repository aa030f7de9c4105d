//! Policies as they are written on the command line: `fixed:16`, `ema:0.8=3,2=16`, `confidence:0.3,16`, `cost-aware`, ...
//! Tables are data, not text: they come from files. Decides nothing.

use crate::{Memory, Policy, SimError};
use specdec::Budget;
use std::str::FromStr;

const FORMS: &str =
    "write fixed:N, ema:ACCEPTED=N,... (rising), confidence:P,MOST, bandit:N,N,..., cost-aware, marginal or oracle";

/// Acceptance memory of policies given as text: about ten rounds, and a try every 32 rounds while off.
const MEMORY: Memory = Memory { weight: 0.1, start: 2.0, probe_every: 32 };

/// Exploration of bandits given as text.
const EXPLORATION: f64 = 0.1;

impl FromStr for Policy {
    type Err = SimError;
    fn from_str(text: &str) -> Result<Self, SimError> {
        let error = |reason: String| SimError::Spec { what: "policy", text: text.into(), reason: format!("{reason} ({FORMS})") };
        let budget = |n: &str| n.parse::<Budget>().map_err(|e| error(e.to_string()));
        let number = |n: &str| n.trim().parse::<f64>().map_err(|_| error(format!("{n:?} is not a number")));
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let policy = match (name, rest) {
            ("fixed", n) => Self::Fixed(budget(n)?),
            ("ema", tiers) => {
                let tier = |tier: &str| {
                    let (accepted, n) = tier.split_once('=').ok_or_else(|| error(format!("{tier:?} has no =")))?;
                    Ok((number(accepted)?, budget(n)?))
                };
                Self::EmaThreshold { tiers: tiers.split(',').map(tier).collect::<Result<_, SimError>>()?, memory: MEMORY }
            }
            ("confidence", both) => {
                let (threshold, most) = both.split_once(',').ok_or_else(|| error("two numbers are needed".into()))?;
                Self::ConfidenceStop { threshold: number(threshold)?, most: budget(most)? }
            }
            ("bandit", arms) => {
                Self::Bandit { arms: arms.split(',').map(budget).collect::<Result<_, _>>()?, exploration: EXPLORATION }
            }
            ("cost-aware", "") => Self::CostAware,
            ("marginal", "") => Self::MarginalStop,
            ("oracle", "") => Self::Oracle,
            _ => return Err(error("unknown policy".into())),
        };
        policy.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_parses_to_its_policy() {
        let b = |n| Budget::new(n).unwrap();
        assert_eq!("fixed:0".parse(), Ok(Policy::Fixed(Budget::OFF)));
        assert_eq!("ema:0.8=3,2=16".parse(), Ok(Policy::EmaThreshold { tiers: vec![(0.8, b(3)), (2.0, b(16))], memory: MEMORY }));
        assert_eq!("confidence:0.3,16".parse(), Ok(Policy::ConfidenceStop { threshold: 0.3, most: b(16) }));
        assert_eq!("bandit:0,8".parse(), Ok(Policy::Bandit { arms: vec![Budget::OFF, b(8)], exploration: EXPLORATION }));
        assert_eq!("cost-aware".parse(), Ok(Policy::CostAware));
        assert_eq!("marginal".parse(), Ok(Policy::MarginalStop));
        assert_eq!("oracle".parse(), Ok(Policy::Oracle));
    }

    #[test]
    fn bad_policies_are_refused_with_a_sentence() {
        for (text, part) in [
            ("fixed:2", "draft budget 2 is outside 3..=32"),
            ("fixed", "not a whole number"),
            ("ema:2=16,0.8=3", "thresholds must rise"),
            ("ema:2", "has no ="),
            ("confidence:1.5,16", "confidence threshold is 1.5"),
            ("confidence:0.5", "two numbers"),
            ("bandit:", "not a whole number"),
            ("cost-aware:3", "unknown policy"),
            ("magic", "write fixed:N"),
        ] {
            let error = text.parse::<Policy>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
