//! One round's record: counts, tree, accepted path and stage times. The one row type of every file that straw writes.
//! Timers stay outside the logic; whoever runs the round fills the times in.

use crate::{Acceptance, Budget, DraftTree};
use serde::{Deserialize, Serialize};

/// Seconds per stage of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StageTimes {
    /// The drafter's forward passes.
    pub draft_s: f64,
    /// Choosing the tree's nodes.
    pub tree_build_s: f64,
    /// Tables that the verification needs.
    pub tree_compile_s: f64,
    /// The target's pass over all rows, and sampling.
    pub verify_s: f64,
    /// Making the accepted path part of the state.
    pub commit_s: f64,
}

impl StageTimes {
    /// Seconds of the whole round.
    pub fn total_s(&self) -> f64 {
        self.draft_s + self.tree_build_s + self.tree_compile_s + self.verify_s + self.commit_s
    }
}

/// One target pass of decoding and what came of it. The prompt pass is not a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundRecord {
    /// Absolute position of the root.
    pub position: u64,
    /// What the drafter was allowed.
    pub budget: Budget,
    /// What was verified; `tree.drafted() <= budget`.
    pub tree: DraftTree,
    /// What the target decided.
    pub acceptance: Acceptance,
    /// Tokens the user received from this round: at most `acceptance.emitted()`, fewer where the answer ended inside.
    pub emitted: usize,
    /// Where the time went.
    pub times: StageTimes,
}

/// Tokens per target pass (tau, bonus tokens included): all tokens that rounds emitted over the rounds. The first token
/// of an answer comes from the prompt pass and is in neither number. `None` without a round.
pub fn tokens_per_pass(rounds: &[RoundRecord]) -> Option<f64> {
    (!rounds.is_empty()).then(|| rounds.iter().map(|r| r.emitted).sum::<usize>() as f64 / rounds.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tau_counts_what_the_user_received() {
        let round = |path: Vec<usize>, emitted| RoundRecord {
            position: 5,
            budget: Budget::new(3).unwrap(),
            tree: DraftTree::chain(1, &[(2, -0.1), (3, -0.1), (4, -0.1)]).unwrap(),
            acceptance: Acceptance { path, next_token: 9 },
            emitted,
            times: StageTimes::default(),
        };
        assert_eq!(tokens_per_pass(&[]), None);
        assert_eq!(tokens_per_pass(&[round(vec![1, 2], 3), round(vec![], 1)]), Some(2.0));
        // The answer ended after the first of three tokens: the other two were never received.
        assert_eq!(tokens_per_pass(&[round(vec![1, 2], 1)]), Some(1.0));
    }
}
