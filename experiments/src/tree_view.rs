//! A draft tree as text: one line per node, accepted nodes marked, drawn as folders are.

use specdec::RoundRecord;

/// Lines of the tree of one round, the bonus token last. `name` gives the text of a token.
pub fn lines(round: &RoundRecord, name: &dyn Fn(u32) -> String) -> Vec<String> {
    let (tree, accepted) = (&round.tree, &round.acceptance.path);
    let mut lines = vec![format!("\"{}\" (root)", name(tree.tokens()[0]))];
    let mut open = vec![(0, String::new())];
    while let Some((row, indent)) = open.pop() {
        if row != 0 {
            let parent = tree.parents()[row].unwrap_or(0);
            let is_last = tree.children(parent).last() == Some(row);
            let (elbow, below) = if is_last { ("└─", "   ") } else { ("├─", "│  ") };
            let mark = if accepted.contains(&row) { "●" } else { "·" };
            let q = f64::from(tree.log_probs()[row]).exp();
            lines.push(format!("{indent}{elbow}{mark} \"{}\" {q:.2}", name(tree.tokens()[row])));
            open.extend(tree.children(row).collect::<Vec<_>>().into_iter().rev().map(|c| (c, format!("{indent}{below}"))));
        } else {
            open.extend(tree.children(0).collect::<Vec<_>>().into_iter().rev().map(|c| (c, String::new())));
        }
    }
    lines.push(format!("then \"{}\", the target's own token", name(round.acceptance.next_token)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use specdec::{Acceptance, Budget, DraftTree, StageTimes};

    #[test]
    fn every_node_has_a_line_under_its_parent_and_accepted_ones_are_marked() {
        let drafted = [(0, 5, 0.0), (0, 6, -1.0), (1, 7, 0.0), (3, 8, -0.7), (2, 9, 0.0)];
        let round = RoundRecord {
            position: 3,
            budget: Budget::new(5).unwrap(),
            tree: DraftTree::new(4, &drafted).unwrap(),
            acceptance: Acceptance { path: vec![1, 3], next_token: 2 },
            emitted: 3,
            times: StageTimes::default(),
        };
        let expected = [
            "\"4\" (root)",
            "├─● \"5\" 1.00",
            "│  └─● \"7\" 1.00",
            "│     └─· \"8\" 0.50",
            "└─· \"6\" 0.37",
            "   └─· \"9\" 1.00",
            "then \"2\", the target's own token",
        ];
        assert_eq!(lines(&round, &|t| t.to_string()), expected);
    }
}
