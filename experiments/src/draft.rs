//! Who drafts and how much: what `--drafter` and `--budget` mean together. A setting that would change nothing is refused
//! or noted, never swallowed.

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use sim::DrafterSteps;
use specdec::{Budget, BudgetTable, DrafterKind};
use std::num::NonZeroUsize;

/// Options of every verb that drafts.
#[derive(Args, Debug, Default)]
pub struct DraftArgs {
    /// Who drafts: off, ngram, mtp, dflash, dflash-tree or weaver [default: the best the model has]
    #[arg(long, value_name = "NAME")]
    pub drafter: Option<String>,
    /// Nodes drafted per round: 0 (off), 3 to 32, or auto (chosen each round) [default: the drafter's own]
    #[arg(long, value_name = "N")]
    pub budget: Option<String>,
}

/// Nodes per round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum BudgetChoice {
    /// The same every round.
    Fixed(Budget),
    /// Chosen every round.
    #[serde(serialize_with = "auto")]
    Auto,
}

fn auto<S: serde::Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("auto")
}

impl std::fmt::Display for BudgetChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(budget) => budget.fmt(f),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// What the options came to.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftPlan {
    /// Who drafts; `Off` at budget 0.
    pub drafter: DrafterKind,
    /// How much.
    pub budget: BudgetChoice,
    /// A tuned table for `auto`.
    pub table: Option<BudgetTable>,
    /// What the user should know about the choice.
    pub notes: Vec<String>,
}

impl DraftPlan {
    /// Resolves the options for a model that has `available`. `block` is the depth of its block drafter.
    ///
    /// Errors: unknown or missing drafter, a budget outside 0 and 3..=32, a budget for nobody.
    pub fn new(args: &DraftArgs, available: &[DrafterKind], block: Option<usize>) -> Result<Self> {
        let asked = args.drafter.as_deref().map(str::parse::<DrafterKind>).transpose()?;
        let budget = match args.budget.as_deref() {
            None => None,
            Some("auto") => Some(BudgetChoice::Auto),
            Some(number) => Some(BudgetChoice::Fixed(number.parse()?)),
        };
        let best = [DrafterKind::Weaver, DrafterKind::Mtp].into_iter().find(|k| available.contains(k));
        let drafter = asked.or(best).unwrap_or(DrafterKind::Off);
        if !available.contains(&drafter) {
            let names: Vec<&str> = available.iter().map(|k| k.name()).collect();
            bail!("the model has no {drafter} drafter, expected one of {} (set --drafter)", names.join(", "));
        }
        let off = BudgetChoice::Fixed(Budget::OFF);
        if drafter == DrafterKind::Off {
            let who = if asked.is_some() { "the drafter is off" } else { "the model brings no drafter" };
            ensure!(budget.is_none_or(|b| b == off), "a draft budget without a drafter: {who} (set --drafter, or --budget 0)");
            return Ok(Self { drafter, budget: off, table: None, notes: Vec::new() });
        }
        let mut notes = Vec::new();
        let budget = match budget {
            Some(budget) => budget,
            None => BudgetChoice::Fixed(Budget::new(own_budget(drafter))?),
        };
        if budget == off {
            if asked.is_some() {
                notes.push(format!("budget 0 is plain decoding: {drafter} drafts nothing"));
            }
            return Ok(Self { drafter: DrafterKind::Off, budget, table: None, notes });
        }
        if let (DrafterKind::Dflash, BudgetChoice::Fixed(n), Some(depth)) = (drafter, budget, block)
            && n.nodes() > depth
        {
            notes.push(format!("dflash drafts at most {depth} tokens a round, fewer than the budget of {n}"));
        }
        Ok(Self { drafter, budget, table: None, notes })
    }
}

/// The budget of a drafter when none is given: where its acceptance usually levels off.
pub fn own_budget(drafter: DrafterKind) -> usize {
    match drafter {
        DrafterKind::Off => 0,
        DrafterKind::Mtp => 3,
        DrafterKind::Ngram => 8,
        DrafterKind::Dflash => 15,
        DrafterKind::DflashTree | DrafterKind::Weaver => 16,
    }
}

/// Sequential steps behind a drafter's tree.
pub fn own_steps(drafter: DrafterKind) -> DrafterSteps {
    match drafter {
        DrafterKind::Mtp => DrafterSteps::PerNode,
        // Weaver expands four nodes together.
        DrafterKind::Weaver => DrafterSteps::Batches(const { NonZeroUsize::new(4).unwrap() }),
        _ => DrafterSteps::Block,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(drafter: Option<&str>, budget: Option<&str>, available: &[DrafterKind]) -> Result<DraftPlan, String> {
        let args = DraftArgs { drafter: drafter.map(str::to_owned), budget: budget.map(str::to_owned) };
        DraftPlan::new(&args, available, Some(15)).map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_are_the_best_drafter_with_its_own_budget() {
        let all = DrafterKind::ALL;
        let chosen = |available: &[DrafterKind]| plan(None, None, available).map(|p| (p.drafter, p.budget.to_string()));
        assert_eq!(chosen(&all), Ok((DrafterKind::Weaver, "16".into())));
        assert_eq!(chosen(&all[..3]), Ok((DrafterKind::Mtp, "3".into())));
        assert_eq!(chosen(&all[..2]), Ok((DrafterKind::Off, "0".into())));
    }

    #[test]
    fn settings_without_effect_are_refused_or_noted() {
        let all = DrafterKind::ALL;
        let without = "a draft budget without a drafter: the drafter is off (set --drafter, or --budget 0)";
        assert_eq!(plan(Some("off"), Some("8"), &all), Err(without.into()));
        assert_eq!(plan(Some("off"), Some("auto"), &all), Err(without.into()));
        assert!(plan(None, Some("8"), &all[..2]).unwrap_err().contains("the model brings no drafter"));
        assert!(plan(Some("off"), Some("0"), &all).unwrap().notes.is_empty());
        assert_eq!(plan(Some("mtp"), Some("0"), &all).unwrap().notes.len(), 1);
        assert_eq!(plan(Some("dflash"), Some("16"), &all).unwrap().notes.len(), 1);
        assert!(plan(Some("dflash"), None, &all).unwrap().notes.is_empty());
    }

    #[test]
    fn every_bad_setting_is_a_sentence() {
        let all = DrafterKind::ALL;
        for (drafter, budget, expected) in [
            (None, Some("2"), "draft budget 2 is outside 3..=32"),
            (None, Some("33"), "draft budget 33 is outside 3..=32"),
            (None, Some("many"), "draft budget \"many\" is not a whole number"),
            (Some("best"), None, "drafter \"best\" is unknown"),
        ] {
            let error = plan(drafter, budget, &all).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = plan(Some("weaver"), None, &all[..3]).unwrap_err();
        assert_eq!(error, "the model has no weaver drafter, expected one of off, ngram, mtp (set --drafter)");
    }
}
