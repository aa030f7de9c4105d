//! `--budget auto`: how many nodes to draft in the next round, 0 included, from what a pass costs and what recently paid.
//! A tree is listed best first (a chain by depth), so the nodes of a smaller budget are a prefix of it, and one round says
//! what every smaller budget would have accepted. Changes speed only: tokens do not depend on budgets.

use crate::cost::CostReport;
use specdec::{Budget, DrafterKind, RoundRecord};

/// Weight of the newest round in the moving averages: about the last 12 rounds count.
const NEWEST: f64 = 0.08;
/// How much less likely than its predecessor an untried rank is taken to be.
const DECAY: f64 = 0.85;
/// Rounds without drafts before one is tried again; doubles while drafting does not pay.
const FIRST_PAUSE: usize = 8;
/// Longest such pause.
const LONGEST_PAUSE: usize = 64;
/// A change of budget must promise this much more speed: averages are noisy and costs are measured.
const MARGIN: f64 = 1.02;

/// The policy's memory of one answer.
pub(crate) struct BudgetPolicy<'a> {
    cost: &'a CostReport,
    drafter: DrafterKind,
    hits: [f64; Budget::MAX],
    tried: usize,
    current: Budget,
    pause: usize,
    wait: usize,
}

impl<'a> BudgetPolicy<'a> {
    /// Starts without experience: the prior is a drafter whose first node is right 6 times in 10.
    pub fn new(cost: &'a CostReport, drafter: DrafterKind) -> Self {
        let mut hits = [0.0; Budget::MAX];
        for (rank, hit) in hits.iter_mut().enumerate() {
            *hit = 0.6 * DECAY.powi(rank as i32);
        }
        let mut policy = Self { cost, drafter, hits, tried: 0, current: Budget::OFF, pause: FIRST_PAUSE, wait: 0 };
        policy.current = policy.best(0);
        policy
    }

    /// The budget of the next round, its root at `position`.
    pub fn choose(&mut self, position: u64) -> Budget {
        let best = self.best(position);
        if self.speed(best, position) > MARGIN * self.speed(self.current, position) {
            self.current = best;
        }
        if !self.current.is_off() {
            self.pause = FIRST_PAUSE;
            return self.current;
        }
        if self.drafter == DrafterKind::Off || self.wait < self.pause {
            self.wait += 1;
            return Budget::OFF;
        }
        self.wait = 0;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        smallest()
    }

    /// Learns from a round.
    pub fn observe(&mut self, round: &RoundRecord) {
        let drafted = round.tree.drafted();
        for rank in 0..drafted {
            let hit = f64::from(u8::from(round.acceptance.path.contains(&(rank + 1))));
            self.hits[rank] += NEWEST * (hit - self.hits[rank]);
        }
        self.tried = self.tried.max(drafted);
        for rank in self.tried.max(1)..Budget::MAX {
            self.hits[rank] = self.hits[rank - 1] * DECAY;
        }
    }

    /// Expected tokens per second with `budget` nodes.
    fn speed(&self, budget: Budget, position: u64) -> f64 {
        let tokens = 1.0 + self.hits[..budget.nodes()].iter().sum::<f64>();
        tokens / self.cost.round_s(self.drafter, budget, position)
    }

    fn best(&self, position: u64) -> Budget {
        let mut best = Budget::OFF;
        for budget in Budget::all().filter(|b| b.is_off() || self.drafter != DrafterKind::Off) {
            if self.speed(budget, position) > self.speed(best, position) {
                best = budget;
            }
        }
        best
    }
}

/// The smallest budget that drafts: what a probe costs.
fn smallest() -> Budget {
    Budget::all().nth(1).unwrap_or(Budget::OFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use specdec::{Acceptance, DraftTree, StageTimes};

    fn round(drafted: usize, accepted: usize) -> RoundRecord {
        let drafts: Vec<(u32, f32)> = (0..drafted as u32).map(|t| (t, -0.5)).collect();
        RoundRecord {
            position: 9,
            budget: Budget::new(drafted).unwrap_or(Budget::OFF),
            tree: DraftTree::chain(99, &drafts).unwrap(),
            acceptance: Acceptance { path: (1..=accepted).collect(), next_token: 0 },
            emitted: accepted + 1,
            times: StageTimes::default(),
        }
    }

    fn run(cost: &CostReport, accepted: usize) -> (Budget, usize) {
        let mut policy = BudgetPolicy::new(cost, DrafterKind::Dflash);
        let (mut last, mut probes) = (Budget::OFF, 0);
        for _ in 0..400 {
            last = policy.choose(100);
            probes += usize::from(!last.is_off());
            policy.observe(&round(last.nodes(), accepted.min(last.nodes())));
        }
        (last, probes)
    }

    #[test]
    fn good_drafts_are_taken_and_bad_ones_are_switched_off() {
        let cost = CostReport::flat(1e-3, 1e-5, 2e-4);
        let (budget, _) = run(&cost, 8);
        assert!((8..=16).contains(&budget.nodes()), "{budget}");
        let (_, probes) = run(&cost, 0);
        assert!(probes < 60, "{probes} of 400 rounds drafted although nothing was ever accepted");
    }

    #[test]
    fn expensive_verification_makes_budgets_small() {
        let cheap = run(&CostReport::flat(1e-3, 1e-5, 1e-4), 6).0;
        let dear = run(&CostReport::flat(1e-3, 6e-4, 1e-4), 6).0;
        assert!(dear < cheap, "{dear} {cheap}");
    }

    #[test]
    fn switched_off_drafting_is_probed_again() {
        let cost = CostReport::flat(1e-3, 1e-5, 2e-4);
        let mut policy = BudgetPolicy::new(&cost, DrafterKind::Dflash);
        for _ in 0..300 {
            let budget = policy.choose(100);
            policy.observe(&round(budget.nodes(), 0));
        }
        let recovered = (0..400).any(|_| {
            let budget = policy.choose(100);
            policy.observe(&round(budget.nodes(), budget.nodes()));
            budget.nodes() >= 8
        });
        assert!(recovered);
    }
}
