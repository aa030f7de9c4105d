//! What a generation cost: rates, acceptance, memory and energy. A figure that was not measured is absent, never zero.

use crate::{draft::DraftPlan, output};
use serde::Serialize;
use specdec::{Generation, tokens_per_pass};
use std::{fs, io, path::PathBuf};

/// The statistics every generation ends with.
#[derive(Clone, Debug, Serialize)]
pub struct Statistics {
    /// Tokens of the prompt, template included.
    pub prompt_tokens: usize,
    /// Tokens emitted, an end token included.
    pub completion_tokens: usize,
    /// Target passes of decoding; the prompt pass, which gives the first token, is not one.
    pub passes: usize,
    /// Tokens those passes emitted, over the passes; `null` without a pass.
    pub tokens_per_forward_pass: Option<f64>,
    /// `[d]`: passes that accepted at least `d + 1` drafts.
    pub accepted_by_position: Vec<usize>,
    /// Drafted nodes.
    pub drafted: usize,
    /// Accepted drafts; the bonus token is not one.
    pub accepted: usize,
    /// Seconds from the request to the first token.
    pub ttft_s: f64,
    /// Prompt tokens per second of the prompt pass.
    pub prefill_tokens_per_s: Option<f64>,
    /// Tokens after the first per second of decoding.
    pub generation_tokens_per_s: Option<f64>,
    /// Seconds from the request to the last token.
    pub duration_s: f64,
    /// Largest resident memory of the process so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Joules of the processor packages while the answer was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
}

impl Statistics {
    /// Counts and rates of one answer.
    pub fn new(prompt_tokens: usize, generation: &Generation, energy_j: Option<f64>) -> Self {
        let rate = |tokens: usize, seconds: f64| (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds);
        let completion_tokens = generation.tokens.len();
        Self {
            prompt_tokens,
            completion_tokens,
            passes: generation.rounds.len(),
            tokens_per_forward_pass: tokens_per_pass(&generation.rounds),
            accepted_by_position: generation.accepted_by_position(),
            drafted: generation.drafted(),
            accepted: generation.accepted(),
            ttft_s: generation.prefill_s,
            prefill_tokens_per_s: rate(prompt_tokens, generation.prefill_s),
            generation_tokens_per_s: rate(completion_tokens.saturating_sub(1), generation.decode_s),
            duration_s: generation.prefill_s + generation.decode_s,
            peak_memory_bytes: peak_memory(),
            energy_j,
        }
    }

    /// A few lines for people.
    pub fn lines(&self, plan: &DraftPlan) -> Vec<String> {
        let rate = |r: Option<f64>| r.map_or("not measured".into(), |r| format!("{r:.1} t/s"));
        let mut lines = vec![
            format!(
                "first token {:.3} s, prefill {}, generation {}, {:.2} s in all",
                self.ttft_s,
                rate(self.prefill_tokens_per_s),
                rate(self.generation_tokens_per_s),
                self.duration_s
            ),
            format!("{} prompt tokens, {} tokens in {} passes", self.prompt_tokens, self.completion_tokens, self.passes),
        ];
        if let Some(tau) = self.tokens_per_forward_pass {
            lines.push(format!("{tau:.2} tokens per forward pass, drafter {}, budget {}", plan.drafter, plan.budget));
        }
        if self.drafted > 0 {
            let shares = self.accepted_by_position.iter().map(|&n| format!("{:.2}", n as f64 / self.passes as f64));
            let shares: Vec<String> = shares.collect();
            let shares = if shares.is_empty() { "none".into() } else { shares.join(" ") };
            lines.push(format!("{} of {} drafts accepted; by position {shares}", self.accepted, self.drafted));
        }
        lines.extend(self.peak_memory_bytes.map(|n| format!("peak memory {}", output::bytes(n))));
        lines.extend(self.energy_j.map(|j| format!("energy {j:.1} J (processor packages)")));
        lines
    }
}

/// `VmHWM` of Linux; absent elsewhere.
fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Energy counters of the processor packages (Linux powercap), from a start.
pub struct EnergyMeter(Vec<Counter>);

struct Counter {
    file: PathBuf,
    start: u64,
    /// The counter wraps to 0 behind this.
    range: u64,
}

impl EnergyMeter {
    /// Starts now, with whatever counters can be read.
    pub fn start() -> Self {
        let zones = fs::read_dir("/sys/class/powercap").into_iter().flatten().flatten();
        // intel-rapl:0 is a package, intel-rapl:0:0 a part of it.
        let packages = zones.filter(|z| z.file_name().to_string_lossy().matches(':').count() == 1);
        let counter = |zone: fs::DirEntry| {
            let read = |name: &str| -> io::Result<u64> {
                fs::read_to_string(zone.path().join(name))?.trim().parse().map_err(io::Error::other)
            };
            let (start, range) = (read("energy_uj").ok()?, read("max_energy_range_uj").ok()?);
            Some(Counter { file: zone.path().join("energy_uj"), start, range })
        };
        Self(packages.filter_map(counter).collect())
    }

    /// Joules since the start; `None` where nothing can be measured.
    pub fn joules(&self) -> Option<f64> {
        let used = |c: &Counter| {
            let now: u64 = fs::read_to_string(&c.file).ok()?.trim().parse().ok()?;
            Some(since(c.start, now, c.range))
        };
        let total: Option<u64> = self.0.iter().map(used).sum();
        total.filter(|_| !self.0.is_empty()).map(|uj| uj as f64 * 1e-6)
    }
}

/// Microjoules between two readings of a counter that wraps at most once.
fn since(start: u64, now: u64, range: u64) -> u64 {
    if now >= start { now - start } else { range.saturating_sub(start) + now }
}

#[cfg(test)]
mod tests {
    use super::*;
    use specdec::{FinishReason, Token};

    #[test]
    fn a_wrapped_counter_is_unwrapped_and_no_counter_is_no_figure() {
        assert_eq!(since(10, 25, 100), 15);
        assert_eq!(since(90, 5, 100), 15);
        assert_eq!(EnergyMeter(Vec::new()).joules(), None);
    }

    #[test]
    fn one_token_has_no_passes_and_no_rates_of_them() {
        let tokens = vec![Token { id: 1, log_prob: -0.5 }];
        let one = Generation { tokens, rounds: vec![], finish_reason: FinishReason::Length, prefill_s: 0.5, decode_s: 0.0 };
        let stats = Statistics::new(10, &one, None);
        assert_eq!((stats.passes, stats.tokens_per_forward_pass, stats.generation_tokens_per_s), (0, None, None));
        assert_eq!(stats.prefill_tokens_per_s, Some(20.0));
        let json = serde_json::to_value(&stats).unwrap();
        assert!(json["tokens_per_forward_pass"].is_null() && json.get("energy_j").is_none());
    }
}
