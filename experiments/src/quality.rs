//! `straw quality`: how far a model's next-token distributions are from another's, on text: KL divergence, agreement of the
//! first choice, perplexities. Meant for a quantised model against its original. Knows logits; nothing of formats.

use crate::{
    corpus::{self, Sample},
    engine::{Engine, EngineArgs, EngineKind},
    output::{Output, table},
};
use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

/// Arguments of `straw quality`.
#[derive(Args, Debug)]
#[command(
    after_help = "Example: straw quality --model straw-tiny-m --reference straw-tiny-bf16 --text experiments/data/held-out.jsonl"
)]
pub struct QualityArgs {
    /// Model folder to judge
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Model folder to judge by, with the same tokenizer; runs in the fast engine
    #[arg(long, value_name = "DIR")]
    reference: PathBuf,
    /// Text: plain, or JSON lines of {workload, text} or {workload, prompt, answer}, where the answer counts
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Tokens that are run together at most; a longer text becomes several windows
    #[arg(long, value_name = "N", default_value_t = 512)]
    window: usize,
    #[command(flatten)]
    engine: EngineArgs,
    /// Fail with exit code 1 when the mean KL divergence is above this (nats per token)
    #[arg(long, value_name = "NATS")]
    limit: Option<f64>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// One predicted token.
#[derive(Clone, Copy)]
struct Prediction {
    /// KL(reference || model), nats.
    kl: f64,
    /// Both have the same first choice.
    agrees: bool,
    /// -log p of the text's token, model and reference.
    loss: (f64, f64),
}

#[derive(Serialize)]
struct Report {
    model: PathBuf,
    reference: PathBuf,
    text: PathBuf,
    window: usize,
    all: Summary,
    workloads: BTreeMap<String, Summary>,
}

/// Standard errors treat texts as independent and the tokens of one text as not.
#[derive(Serialize)]
struct Summary {
    texts: usize,
    tokens: usize,
    kl_mean: f64,
    kl_mean_standard_error: Option<f64>,
    kl_median: f64,
    kl_p90: f64,
    kl_p95: f64,
    kl_p99: f64,
    kl_p999: f64,
    kl_max: f64,
    top1_agreement: f64,
    top1_agreement_standard_error: Option<f64>,
    perplexity: f64,
    reference_perplexity: f64,
    perplexity_ratio: f64,
    /// Of the ratio's logarithm.
    log_ratio_standard_error: Option<f64>,
}

/// Measures and prints.
pub fn run(args: &QualityArgs) -> Result<ExitCode> {
    ensure!(args.window >= 2, "a window has {} tokens, expected at least 2 (set --window)", args.window);
    let samples = corpus::read(&args.text, &args.reference, args.window)?;
    let model = Engine::load(&args.model, &args.engine).with_context(|| args.model.display().to_string())?;
    let by = EngineArgs { engine: EngineKind::Fast, threads: args.engine.threads };
    let reference = Engine::load(&args.reference, &by).with_context(|| args.reference.display().to_string())?;
    let (found, expected) = (model.config().vocab_size, reference.config().vocab_size);
    ensure!(found == expected, "{} has a vocabulary of {found}, the reference one of {expected}", args.model.display());
    let bar = ProgressBar::new(samples.iter().map(|s| s.tokens.len() as u64).sum());
    bar.set_style(ProgressStyle::with_template("{wide_bar} {pos} of {len} tokens, {eta} left")?);
    let mut workloads: BTreeMap<String, BTreeMap<usize, Vec<Prediction>>> = BTreeMap::new();
    for sample in &samples {
        let pairs = compare(sample, &model.logits(&sample.tokens)?, &reference.logits(&sample.tokens)?);
        workloads.entry(sample.workload.clone()).or_default().entry(sample.text).or_default().extend(pairs);
        bar.inc(sample.tokens.len() as u64);
    }
    bar.finish_and_clear();
    let every: Vec<&Vec<Prediction>> = workloads.values().flat_map(BTreeMap::values).collect();
    let report = Report {
        model: args.model.clone(),
        reference: args.reference.clone(),
        text: args.text.clone(),
        window: args.window,
        all: Summary::of(&every),
        workloads: workloads.iter().map(|(name, texts)| (name.clone(), Summary::of(&Vec::from_iter(texts.values())))).collect(),
    };
    let mut out = Output::stdout();
    if args.json {
        out.json(&report)?;
    } else {
        table(&report.rows()).into_iter().try_for_each(|line| out.line(line))?;
    }
    let above = args.limit.is_some_and(|limit| report.all.kl_mean > limit);
    Ok(if above { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// `found`, `expected`: `[tokens, vocab]`; row i is after token i and predicts token i + 1.
fn compare(sample: &Sample, found: &[f32], expected: &[f32]) -> Vec<Prediction> {
    let vocab = found.len() / sample.tokens.len();
    let row = |i: usize| {
        let (q, p) = (log_softmax(&found[i * vocab..][..vocab]), log_softmax(&expected[i * vocab..][..vocab]));
        let next = sample.tokens[i + 1] as usize;
        Prediction {
            kl: p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>().max(0.0),
            agrees: argmax(&q) == argmax(&p),
            loss: (-q[next], -p[next]),
        }
    };
    (sample.first - 1..sample.tokens.len() - 1).map(row).collect()
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let shifted = || logits.iter().map(|&x| f64::from(x - largest));
    let total = shifted().map(f64::exp).sum::<f64>().ln();
    shifted().map(|x| x - total).collect()
}

/// The lowest id at a tie.
fn argmax(values: &[f64]) -> usize {
    (0..values.len()).rev().max_by(|&a, &b| values[a].total_cmp(&values[b])).unwrap_or(0)
}

impl Summary {
    fn of(texts: &[&Vec<Prediction>]) -> Self {
        let mut kl: Vec<f64> = texts.iter().flat_map(|t| t.iter().map(|p| p.kl)).collect();
        kl.sort_by(f64::total_cmp);
        // Nearest rank.
        let percentile = |share: f64| kl[((share * kl.len() as f64).ceil() as usize).clamp(1, kl.len()) - 1];
        let mean = |of: &dyn Fn(&Prediction) -> f64| clustered(texts, of);
        let (kl_mean, top1) = (mean(&|p| p.kl), mean(&|p| f64::from(p.agrees)));
        let (loss, base) = (mean(&|p| p.loss.0), mean(&|p| p.loss.1));
        let ratio = mean(&|p| p.loss.0 - p.loss.1);
        Self {
            texts: texts.len(),
            tokens: kl.len(),
            kl_mean: kl_mean.0,
            kl_mean_standard_error: kl_mean.1,
            kl_median: percentile(0.5),
            kl_p90: percentile(0.9),
            kl_p95: percentile(0.95),
            kl_p99: percentile(0.99),
            kl_p999: percentile(0.999),
            kl_max: percentile(1.0),
            top1_agreement: top1.0,
            top1_agreement_standard_error: top1.1,
            perplexity: loss.0.exp(),
            reference_perplexity: base.0.exp(),
            perplexity_ratio: ratio.0.exp(),
            log_ratio_standard_error: ratio.1,
        }
    }
}

/// Mean over all tokens, and its standard error from the spread between texts (a ratio estimator; nothing from one text).
fn clustered(texts: &[&Vec<Prediction>], of: &dyn Fn(&Prediction) -> f64) -> (f64, Option<f64>) {
    let tokens: usize = texts.iter().map(|t| t.len()).sum();
    let sums = || texts.iter().map(|t| (t.iter().map(of).sum::<f64>(), t.len() as f64));
    let mean = sums().map(|(sum, _)| sum).sum::<f64>() / tokens as f64;
    let spread: f64 = sums().map(|(sum, n)| (sum - mean * n).powi(2)).sum();
    let clusters = texts.len() as f64;
    let error = (texts.len() > 1).then(|| (spread * clusters / (clusters - 1.0)).sqrt() / tokens as f64);
    (mean, error)
}

impl Report {
    fn rows(&self) -> Vec<Vec<String>> {
        let head = [
            "workload", "texts", "tokens", "KL mean", "+-", "median", "p90", "p95", "p99", "p99.9", "max", "top-1", "+-", "ppl",
            "ref ppl", "ratio",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for (name, s) in self.workloads.iter().map(|(n, s)| (n.as_str(), s)).chain([("all", &self.all)]) {
            let error = |e: Option<f64>| e.map_or("-".into(), |e| format!("{e:.1e}"));
            let mut row = vec![name.to_owned(), s.texts.to_string(), s.tokens.to_string()];
            row.extend([format!("{:.2e}", s.kl_mean), error(s.kl_mean_standard_error)]);
            row.extend([s.kl_median, s.kl_p90, s.kl_p95, s.kl_p99, s.kl_p999, s.kl_max].map(|x| format!("{x:.1e}")));
            row.extend([format!("{:.4}", s.top1_agreement), error(s.top1_agreement_standard_error)]);
            row.extend([s.perplexity, s.reference_perplexity].map(|x| format!("{x:.3}")));
            row.push(format!("{:.4}", s.perplexity_ratio));
            rows.push(row);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tokens: &[u32], first: usize) -> Sample {
        Sample { workload: "w".into(), text: 0, tokens: tokens.to_vec(), first }
    }

    #[test]
    fn divergence_agreement_and_losses_are_those_of_two_coins() {
        let logits = |p: f32| [p.ln(), (1.0 - p).ln()];
        let (found, expected) =
            ([logits(0.25), logits(0.9), logits(0.5)].concat(), [logits(0.5), logits(0.8), logits(0.5)].concat());
        let pairs = compare(&sample(&[0, 1, 0], 1), &found, &expected);
        assert_eq!(pairs.len(), 2);
        let kl = 0.5 * (0.5f64 / 0.25).ln() + 0.5 * (0.5f64 / 0.75).ln();
        assert!((pairs[0].kl - kl).abs() < 1e-6, "{}", pairs[0].kl);
        assert_eq!((pairs[0].agrees, pairs[1].agrees), (false, true));
        assert!((pairs[0].loss.0 + 0.75f64.ln()).abs() < 1e-6 && (pairs[1].loss.1 + 0.8f64.ln()).abs() < 1e-6);
        assert_eq!(compare(&sample(&[0, 1, 0], 2), &found, &expected).len(), 1, "only what counts as predicted");
    }

    #[test]
    fn standard_errors_come_from_texts_not_tokens() {
        let text = |kl: f64, n: usize| vec![Prediction { kl, agrees: true, loss: (1.0, 1.0) }; n];
        let (a, b) = (text(1.0, 10), text(3.0, 10));
        let summary = Summary::of(&[&a, &b]);
        assert_eq!((summary.kl_mean, summary.kl_mean_standard_error), (2.0, Some(1.0)));
        assert_eq!((summary.kl_median, summary.kl_p90, summary.kl_max), (1.0, 3.0, 3.0));
        assert_eq!(Summary::of(&[&a]).kl_mean_standard_error, None);
        assert_eq!((summary.perplexity_ratio, summary.log_ratio_standard_error), (1.0, Some(0.0)));
    }
}
