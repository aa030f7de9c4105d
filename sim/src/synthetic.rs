//! Traces drawn from a known law: what every claim about replay and fitting is checked against, and the controlled acceptance
//! that engine studies ask for. The text (regime and luck of every position) is drawn first; rounds then walk it, so that a
//! dense trace and a walked one tell the same story.

use crate::{
    AcceptanceModel, DrafterSteps, Law, Scope, Shape, SimError, Trace,
    model::tries,
    randomness::{beta, stream, uniform},
    trace::{Identity, Roots, SCHEMA, TraceHeader, TraceNode, TracePrompt, TraceRound, TreeNoise, VERSION},
};
use specdec::{SamplingOptions, SamplingParams};

/// What to draw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SyntheticTrace<'a> {
    /// Law of acceptance.
    pub model: &'a AcceptanceModel,
    /// Tree of every round.
    pub shape: &'a Shape,
    /// Prompts.
    pub prompts: usize,
    /// Tokens of each answer.
    pub tokens: usize,
    /// A line at every position.
    pub dense: bool,
    /// Seed; one stream per prompt.
    pub seed: u64,
}

impl SyntheticTrace<'_> {
    /// Draws the trace, at temperature 1 with a tree that does not know the target's noise.
    ///
    /// Error: a trace without rounds.
    pub fn draw(&self) -> Result<Trace, SimError> {
        let prompt = |p| TracePrompt { id: format!("synthetic-{p}"), workload: "synthetic".into() };
        let prompts: Vec<TracePrompt> = (0..self.prompts).map(prompt).collect();
        let identity = |name: &str| Identity { name: name.into(), hash: format!("seed-{}", self.seed) };
        let header = TraceHeader {
            schema: SCHEMA.into(),
            version: VERSION,
            model: identity("synthetic"),
            drafter: identity("synthetic"),
            sampling: SamplingParams::new(SamplingOptions { temperature: 1.0, ..Default::default() })
                .expect("temperature 1 is in range"),
            tree_noise: TreeNoise::Independent,
            roots: if self.dense { Roots::Dense } else { Roots::Visited },
            budget: None,
            max_tokens: Some(self.tokens),
            draft_steps: DrafterSteps::Block,
            prompts: prompts.clone(),
        };
        let average = averages(self.model, self.shape);
        let rounds = prompts.iter().enumerate().flat_map(|(p, prompt)| self.prompt(p as u32, &prompt.id, &average));
        Trace::new(header, rounds.collect())
    }

    fn prompt(&self, prompt: u32, id: &str, average: &[f64]) -> Vec<TraceRound> {
        let mut rng = stream(self.seed, 0, prompt);
        // Not the tree's own depth: the text must not depend on the tree.
        let positions = self.tokens + self.shape.max_depth().max(64) + 2;
        let luck: Vec<f64> = (0..positions).map(|_| uniform(&mut rng)).collect();
        let mut alphas = vec![0.0; positions];
        match self.model.law() {
            Law::Markov { alpha, leave } => {
                let mut s = usize::from(uniform(&mut rng) * (leave[0] + leave[1]) >= leave[1]);
                for a in &mut alphas {
                    *a = alpha[s];
                    s = if uniform(&mut rng) < leave[s] { 1 - s } else { s };
                }
            }
            Law::Beta { mean, concentration, scope } => {
                let mut draw = || beta(&mut rng, mean * concentration, (1.0 - mean) * concentration);
                let of_prompt = draw();
                alphas.iter_mut().for_each(|a| *a = if *scope == Scope::Prompt { of_prompt } else { draw() });
            }
            _ => {}
        }
        let children = self.shape.children();
        let mut rounds = Vec::new();
        let mut root = 0;
        while root < self.tokens {
            let rate = |row: usize| match self.model.law() {
                Law::Markov { .. } => tries(alphas[root + self.shape.depth(row)], self.shape.rank(row)),
                Law::Beta { .. } => tries(alphas[root], self.shape.rank(row)),
                _ => self.model.rate(self.shape.depth(row), self.shape.rank(row)),
            };
            let mut accepted = Vec::new();
            let mut row = 0;
            loop {
                let mut left = luck[root + self.shape.depth(row) + 1];
                let hit = children[row].iter().copied().find(|&c| {
                    let hit = left < rate(c);
                    left -= rate(c);
                    hit
                });
                let Some(hit) = hit else { break };
                accepted.push(hit);
                row = hit;
            }
            let node = |row: usize| TraceNode {
                parent: self.shape.parent(row),
                depth: self.shape.depth(row),
                rank: self.shape.rank(row),
                // Engines record f32; near-ties of path sums must order as in the tree that was grown.
                draft_log_prob: f64::from(average[row].ln().min(0.0) as f32),
                target_log_prob: Some(rate(row).ln().min(0.0)).filter(|l| l.is_finite()),
                target_rank: self.shape.rank(row),
            };
            let emitted = accepted.len() + 1;
            rounds.push(TraceRound {
                prompt: id.into(),
                position: root as u64,
                context: root as u64,
                nodes: (1..self.shape.rows()).map(node).collect(),
                accepted,
            });
            root += if self.dense { 1 } else { emitted };
        }
        rounds
    }
}

/// The drafter knows averages only.
fn averages(model: &AcceptanceModel, shape: &Shape) -> Vec<f64> {
    (0..shape.rows()).map(|row| if row == 0 { 1.0 } else { model.rate(shape.depth(row), shape.rank(row)).max(1e-12) }).collect()
}
