//! The verdict: each rule's emitted law, completed by plain sampling, against ancestral sampling from the target. Losslessness
//! is decided in exact rationals; the f64 error is reported beside it. Prints nothing.

use super::case::Case;
use super::figures::{Gap, gap};
use crate::enumerate::{Drafts, Tables, ancestral, complete, distance, emitted};
use crate::number::Number;
use crate::rules::{Rule, greedy};
use num_rational::BigRational;
use num_traits::Zero;
use serde::Serialize;

/// Largest error of f64 arithmetic that counts as exact: a few thousand roundings of numbers below 1.
const TOLERANCE: f64 = 1e-12;

/// Rules that judge whole trees are summed tree by tree; cases with more trees than this leave them out.
const MOST_TREES: f64 = 3000.0;

/// What the check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LawReport {
    /// Cases that ran.
    pub cases: usize,
    /// One entry per rule that had a case; plain rules first.
    pub rules: Vec<RuleReport>,
    /// Largest absolute difference between our f64 arithmetic and the cases' own figures.
    pub arithmetic_max_abs_error: f64,
    /// Whether our rationals meet every fraction among the cases' own figures.
    pub arithmetic_exact: bool,
}

/// One rule over all cases it applies to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RuleReport {
    /// The rule, and on what if that matters.
    pub rule: String,
    /// Whether it promises the target's law.
    pub claims_lossless: bool,
    /// Largest absolute difference from ancestral sampling, in f64.
    pub max_abs_error: f64,
    /// Equal to ancestral sampling in exact rationals, and within 1e-12 in f64.
    pub lossless: bool,
    /// Cases that ran.
    pub cases: usize,
}

impl LawReport {
    /// A rule broke its promise, or a case's own figures are not met.
    pub fn failed(&self) -> bool {
        let broken = self.rules.iter().any(|r| r.claims_lossless && !r.lossless);
        let is_met = self.arithmetic_exact && self.arithmetic_max_abs_error <= TOLERANCE;
        broken || !is_met
    }
}

/// Runs every rule on every case it applies to. `progress` hears how many cases are done.
pub fn check(cases: &[Case], progress: &mut dyn FnMut(usize)) -> LawReport {
    let mut rules: Vec<RuleReport> = CLAIMS.iter().map(Claim::report).collect();
    let mut arithmetic = Gap::NONE;
    for (index, case) in cases.iter().enumerate() {
        let (float, exact) = (case.tables::<f64>(), case.tables::<BigRational>());
        for (claim, report) in CLAIMS.iter().zip(&mut rules).filter(|(claim, _)| claim.applies(case)) {
            let error = error(claim.rule, &float, case);
            let is_exact = self::error(claim.rule, &exact, case).is_zero();
            report.cases += 1;
            report.lossless &= is_exact && error <= TOLERANCE;
            report.max_abs_error = if error.is_nan() { error } else { report.max_abs_error.max(error) };
        }
        arithmetic = arithmetic.worst(gap(case, &float, &exact));
        progress(index + 1);
    }
    rules.retain(|report| report.cases > 0);
    LawReport { cases: cases.len(), rules, arithmetic_max_abs_error: arithmetic.float, arithmetic_exact: arithmetic.exact }
}

/// Largest difference between the completed law of a rule and plain sampling.
fn error<N: Number>(rule: Rule, tables: &Tables<N>, case: &Case) -> N {
    let tables = match rule {
        // Greedy decoding is plain sampling from point masses.
        Rule::Greedy => Tables { p: tables.p.iter().map(|p| greedy::point_mass(p)).collect(), q: tables.q.clone() },
        _ => tables.clone(),
    };
    let length = case.drafts.depth() + 1;
    let law = emitted(rule, &tables, case.last, &case.drafts);
    distance(&complete(&law, &tables, case.last, length), &ancestral(&tables, case.last, length))
}

/// What a rule promises, and for which drafts.
struct Claim {
    rule: Rule,
    on: On,
    lossless: bool,
}

#[derive(PartialEq)]
enum On {
    /// Whatever was drafted.
    Anything,
    /// Chains drawn from q, on average.
    DrawnChains,
    /// Trees drawn from q without replacement, on average.
    DrawnTrees,
    /// One tree, though its rule expects draws.
    OneTree,
}

const CLAIMS: [Claim; 9] = [
    Claim { rule: Rule::Greedy, on: On::Anything, lossless: true },
    Claim { rule: Rule::SampleAndMatch, on: On::Anything, lossless: true },
    Claim { rule: Rule::DeterministicChildren, on: On::Anything, lossless: true },
    Claim { rule: Rule::Rejection, on: On::DrawnChains, lossless: true },
    Claim { rule: Rule::WithoutReplacement, on: On::DrawnTrees, lossless: true },
    Claim { rule: Rule::Block, on: On::DrawnChains, lossless: true },
    Claim { rule: Rule::Traversal, on: On::DrawnTrees, lossless: true },
    Claim { rule: Rule::WithoutReplacement, on: On::OneTree, lossless: false },
    Claim { rule: Rule::Typical, on: On::Anything, lossless: false },
];

impl Claim {
    fn report(&self) -> RuleReport {
        let place = if self.on == On::OneTree { " on one fixed tree" } else { "" };
        RuleReport {
            rule: format!("{}{place}", self.rule.name()),
            claims_lossless: self.lossless,
            max_abs_error: 0.0,
            lossless: true,
            cases: 0,
        }
    }

    fn applies(&self, case: &Case) -> bool {
        let is_drawn = matches!(case.drafts, Drafts::Random(_));
        let fits = match self.on {
            On::Anything => true,
            On::DrawnChains => is_drawn && case.drafts.is_chain(),
            On::DrawnTrees => is_drawn,
            On::OneTree => !is_drawn && case.is_drawable(),
        };
        fits && (self.rule.is_a_walk() || case.trees() <= MOST_TREES)
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
