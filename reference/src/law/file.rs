//! Cases from a JSON file: sections `single`, `chain`, `tree_fixed`, `tree_random` of weight tables with optional figures
//! (tests/fixtures/acceptance/README.md). Everything is checked here, once; a bad file is one sentence.

use super::case::{Case, Expected, Figure, RoundFigures, SingleFigures, largest_support, orders};
use crate::enumerate::Drafts;
use crate::rules::Rule;
use num_rational::BigRational;
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use specdec::DraftTree;
use std::collections::BTreeMap;

/// Sequences and draws that one case may list.
const MOST_OUTCOMES: f64 = 100_000.0;
const MOST_TOKENS: usize = 64;
const MOST_DEPTH: usize = 16;

/// Reads and checks all cases of a file.
pub fn read_cases(text: &str) -> Result<Vec<Case>, LawError> {
    let file: File = serde_json::from_str(text)?;
    let mut cases = Vec::new();
    for (i, single) in file.single.into_iter().enumerate() {
        cases.push(single.case(format!("single {i}"))?);
    }
    for (section, rounds) in [("chain", file.chain), ("tree_fixed", file.tree_fixed), ("tree_random", file.tree_random)] {
        for (i, round) in rounds.into_iter().enumerate() {
            cases.push(round.case(section, format!("{section} {i}"))?);
        }
    }
    if cases.is_empty() {
        return Err(LawError::Empty);
    }
    Ok(cases)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "seed")]
    _seed: Option<IgnoredAny>,
    #[serde(rename = "rules")]
    _rules: Option<IgnoredAny>,
    #[serde(default)]
    single: Vec<SingleEntry>,
    #[serde(default)]
    chain: Vec<RoundEntry>,
    #[serde(default)]
    tree_fixed: Vec<RoundEntry>,
    #[serde(default)]
    tree_random: Vec<RoundEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SingleEntry {
    #[serde(rename = "V")]
    vocab: Option<usize>,
    #[serde(rename = "kind")]
    _kind: Option<IgnoredAny>,
    p_weights: Vec<u32>,
    q_weights: Vec<u32>,
    accept_prob: Option<FigureEntry>,
    per_token_accept: Option<Vec<Option<f64>>>,
    /// A null is a figure of its own here: p = q has no residual.
    #[serde(default, deserialize_with = "present")]
    residual: Option<Option<Vec<f64>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoundEntry {
    #[serde(rename = "V")]
    vocab: Option<usize>,
    #[serde(rename = "kind")]
    _kind: Option<IgnoredAny>,
    last: u32,
    p_weights: Vec<Vec<u32>>,
    q_weights: Vec<Vec<u32>>,
    g: Option<usize>,
    mode: Option<Mode>,
    tree: Option<Node>,
    widths: Option<Vec<usize>>,
    n_outcomes: Option<usize>,
    law: Option<Vec<(Vec<u32>, f64)>>,
    #[serde(default)]
    length_probs: BTreeMap<usize, FigureEntry>,
    #[serde(default)]
    first_token_probs: BTreeMap<u32, FigureEntry>,
    #[serde(default)]
    n_accepted_probs: Vec<FigureEntry>,
    expected_emitted: Option<FigureEntry>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    WithoutReplacement,
    Onehot,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    t: u32,
    c: Vec<Node>,
}

/// `["num/den", float]`.
#[derive(Deserialize)]
struct FigureEntry(String, f64);

fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<Vec<f64>>>, D::Error> {
    Option::deserialize(value).map(Some)
}

impl SingleEntry {
    fn case(self, name: String) -> Result<Case, LawError> {
        let vocab = self.p_weights.len();
        // One law for whatever came before: a Markov table of equal rows.
        let (p_weights, q_weights) = (vec![self.p_weights; vocab], vec![self.q_weights; vocab]);
        check_tables(&name, self.vocab, 0, &p_weights, &q_weights)?;
        let listed = [
            ("per_token_accept", self.per_token_accept.as_ref().map(Vec::len)),
            ("residual", self.residual.as_ref().and_then(|r| r.as_ref().map(Vec::len))),
        ];
        for (field, found) in listed {
            if let Some(found) = found.filter(|&n| n != vocab) {
                return Err(LawError::field(&name, field, format!("{found} entries"), format!("{vocab}, one per token")));
            }
        }
        let figures = SingleFigures {
            accept_prob: self.accept_prob.map(|f| f.figure(&name, "accept_prob")).transpose()?,
            per_token_accept: self.per_token_accept,
            residual: self.residual,
        };
        let drafts = Drafts::Random(vec![1]);
        Ok(Case { name, p_weights, q_weights, last: 0, drafts, expected: Expected::Single(figures) })
    }
}

impl RoundEntry {
    fn case(self, section: &str, name: String) -> Result<Case, LawError> {
        check_tables(&name, self.vocab, self.last, &self.p_weights, &self.q_weights)?;
        let missing = |field, expected: &str| LawError::field(&name, field, "missing".into(), expected.into());
        let (rule, drafts) = match section {
            "chain" => {
                let g = self.g.ok_or_else(|| missing("g", "the number of drafts"))?;
                check_range(&name, "g", g, 1, MOST_DEPTH)?;
                (Rule::Rejection, Drafts::Random(vec![1; g]))
            }
            "tree_fixed" => {
                let mode = self.mode.ok_or_else(|| missing("mode", "without_replacement or onehot"))?;
                let root = self.tree.as_ref().ok_or_else(|| missing("tree", "the drafted tree"))?;
                let rule = if mode == Mode::Onehot { Rule::DeterministicChildren } else { Rule::WithoutReplacement };
                (rule, Drafts::Fixed(draft_tree(&name, root, self.last, self.p_weights.len())?))
            }
            _ => {
                let widths = self.widths.clone().ok_or_else(|| missing("widths", "children per node for every depth"))?;
                check_range(&name, "widths", widths.len(), 1, MOST_DEPTH)?;
                for &width in &widths {
                    check_range(&name, "widths", width, 1, MOST_TOKENS)?;
                }
                (Rule::WithoutReplacement, Drafts::Random(widths))
            }
        };
        let figures = RoundFigures {
            law: self.law,
            outcomes: self.n_outcomes,
            length_probs: figures(&name, "length_probs", self.length_probs)?,
            first_token_probs: figures(&name, "first_token_probs", self.first_token_probs)?,
            n_accepted_probs: self
                .n_accepted_probs
                .into_iter()
                .map(|f| f.figure(&name, "n_accepted_probs"))
                .collect::<Result<_, _>>()?,
            expected_emitted: self.expected_emitted.map(|f| f.figure(&name, "expected_emitted")).transpose()?,
        };
        let (p_weights, q_weights) = (self.p_weights, self.q_weights);
        let case = Case { name, p_weights, q_weights, last: self.last, drafts, expected: Expected::Round(rule, figures) };
        check_size(&case)?;
        if rule == Rule::WithoutReplacement && !case.is_drawable() {
            let expected = "tokens with draft weight (they are drawn from q)".into();
            return Err(LawError::field(&case.name, "tree", "a tree with an impossible draft".into(), expected));
        }
        Ok(case)
    }
}

impl FigureEntry {
    fn figure(self, case: &str, field: &'static str) -> Result<Figure, LawError> {
        let fraction: Result<BigRational, _> = self.0.parse();
        let fraction =
            fraction.map_err(|_| LawError::field(case, field, format!("{:?}", self.0), "a fraction like 3/4".into()))?;
        Ok(Figure { fraction, float: self.1 })
    }
}

fn figures<K: Ord>(case: &str, field: &'static str, entries: BTreeMap<K, FigureEntry>) -> Result<BTreeMap<K, Figure>, LawError> {
    entries.into_iter().map(|(key, entry)| Ok((key, entry.figure(case, field)?))).collect()
}

fn check_tables(name: &str, vocab: Option<usize>, last: u32, p: &[Vec<u32>], q: &[Vec<u32>]) -> Result<(), LawError> {
    let size = p.len();
    check_range(name, "p_weights", size, 1, MOST_TOKENS)?;
    if let Some(vocab) = vocab.filter(|&v| v != size) {
        return Err(LawError::field(name, "V", vocab.to_string(), format!("{size}, the rows of p_weights")));
    }
    if last as usize >= size {
        return Err(LawError::field(name, "last", last.to_string(), format!("a token below {size}")));
    }
    for (field, table) in [("p_weights", p), ("q_weights", q)] {
        if table.len() != size || table.iter().any(|row| row.len() != size) {
            return Err(LawError::field(name, field, "not square".into(), format!("{size} weights for every token")));
        }
        if let Some(row) = table.iter().position(|row| row.iter().all(|&w| w == 0)) {
            return Err(LawError::field(name, field, format!("all 0 in row {row}"), "at least one positive weight".into()));
        }
    }
    Ok(())
}

fn check_range(name: &str, field: &'static str, found: usize, least: usize, most: usize) -> Result<(), LawError> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(LawError::field(name, field, found.to_string(), format!("{least} to {most}")))
}

/// Sequences of the target, and ordered draws of one node.
fn check_size(case: &Case) -> Result<(), LawError> {
    let (p, q) = (largest_support(&case.p_weights), largest_support(&case.q_weights));
    let sequences = (p as f64).powi(case.drafts.depth() as i32 + 1);
    let draws = match &case.drafts {
        Drafts::Fixed(_) => 1.0,
        Drafts::Random(widths) => (0..).zip(widths).map(|(depth, &w)| (q as f64).powi(depth) * orders(q, w)).sum(),
    };
    let outcomes = f64::max(sequences, draws);
    if outcomes <= MOST_OUTCOMES {
        return Ok(());
    }
    Err(LawError::TooLarge { case: case.name.clone(), outcomes, most: MOST_OUTCOMES })
}

/// Rows in depth-first order, siblings as listed.
fn draft_tree(name: &str, root: &Node, last: u32, vocab: usize) -> Result<DraftTree, LawError> {
    let mut drafted: Vec<(usize, u32, f32)> = Vec::new();
    let mut open: Vec<(usize, &Node)> = root.c.iter().rev().map(|child| (0, child)).collect();
    while let Some((parent, node)) = open.pop() {
        if node.t as usize >= vocab {
            return Err(LawError::field(name, "tree", format!("token {}", node.t), format!("tokens below {vocab}")));
        }
        drafted.push((parent, node.t, 0.0));
        let row = drafted.len();
        open.extend(node.c.iter().rev().map(|child| (row, child)));
    }
    if root.t != last {
        return Err(LawError::field(name, "tree", format!("root {}", root.t), format!("the last token {last}")));
    }
    let tree = DraftTree::new(last, &drafted)
        .map_err(|error| LawError::field(name, "tree", error.to_string(), "siblings that differ".into()))?;
    check_range(name, "tree", tree.max_depth(), 0, MOST_DEPTH)?;
    Ok(tree)
}

/// Why a file is not a set of acceptance cases.
#[derive(Debug, thiserror::Error)]
pub enum LawError {
    /// Not JSON, or not of this shape.
    #[error("the file is not a set of acceptance cases: {0} (format: tests/fixtures/acceptance/README.md)")]
    Format(String),
    /// No case at all.
    #[error("the file has no cases, expected at least one under single, chain, tree_fixed or tree_random")]
    Empty,
    /// A field that does not fit its case.
    #[error("case {case}: {field} is {found}, expected {expected}")]
    Field {
        /// Section and number.
        case: String,
        /// The field.
        field: &'static str,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// Enumeration would take too long.
    #[error("case {case} would list about {outcomes:.0} outcomes, at most {most} are enumerated (use fewer tokens or drafts)")]
    TooLarge {
        /// Section and number.
        case: String,
        /// Sequences or draws.
        outcomes: f64,
        /// The limit.
        most: f64,
    },
}

// The sentence quotes the parser; as a source as well, it would be printed twice.
impl From<serde_json::Error> for LawError {
    fn from(error: serde_json::Error) -> Self {
        Self::Format(error.to_string())
    }
}

impl LawError {
    fn field(case: &str, field: &'static str, found: String, expected: String) -> Self {
        Self::Field { case: case.into(), field, found, expected }
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
