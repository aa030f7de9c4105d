//! Properties of draft trees: shape invariants, the walk, and best-first against enumeration.

use super::*;
use proptest::prelude::*;

fn random_tree() -> impl Strategy<Value = DraftTree> {
    prop::collection::vec((0usize..1000, 0u32..6, -5.0f32..0.0), 0..33).prop_map(|raw| {
        let mut drafted: Vec<(usize, u32, f32)> = Vec::new();
        for (pick, token, log_prob) in raw {
            let parent = pick % (drafted.len() + 1);
            if !drafted.iter().any(|d| d.0 == parent && d.1 == token) {
                drafted.push((parent, token, log_prob));
            }
        }
        DraftTree::new(7, &drafted).expect("parents come first and siblings differ")
    })
}

proptest! {
    #[test]
    fn paths_start_at_the_root_and_follow_parents(tree in random_tree()) {
        for row in 0..tree.rows() {
            let path = tree.path(row);
            prop_assert_eq!((path[0], path[path.len() - 1]), (0, row));
            prop_assert_eq!(path.len(), tree.depths()[row] + 1);
            prop_assert!(path.windows(2).all(|w| tree.parents()[w[1]] == Some(w[0])));
        }
    }

    #[test]
    fn the_walk_emits_samples_only_and_stops_where_no_child_matches(tree in random_tree(), salt in 0u32..1000) {
        let samples: Vec<u32> = (0..tree.rows() as u32).map(|r| (r.wrapping_mul(2654435761) ^ salt) % 6).collect();
        let acceptance = tree.follow(&samples);
        let mut row = 0;
        for &next in &acceptance.path {
            prop_assert_eq!(tree.parents()[next], Some(row));
            prop_assert_eq!(tree.tokens()[next], samples[row]);
            row = next;
        }
        prop_assert_eq!(acceptance.next_token, samples[row]);
        prop_assert_eq!(tree.child(row, samples[row]), None);
    }

    #[test]
    fn json_round_trip_keeps_the_tree(tree in random_tree()) {
        let text = serde_json::to_string(&tree).unwrap();
        prop_assert_eq!(serde_json::from_str::<DraftTree>(&text).unwrap(), tree);
    }

    #[test]
    fn clipping_keeps_exactly_the_shallow_rows(tree in random_tree(), depth in 0usize..6) {
        let clipped = tree.clipped(depth);
        let kept: Vec<u32> = (0..tree.rows()).filter(|&r| tree.depths()[r] <= depth).map(|r| tree.tokens()[r]).collect();
        prop_assert_eq!(clipped.tokens(), &kept[..]);
        prop_assert!(clipped.max_depth() <= depth);
    }

    /// DDTree's claim: no other set of `budget` connected nodes has a larger sum of path products.
    #[test]
    fn best_first_holds_the_most_probable_nodes(
        weights in prop::collection::vec(prop::collection::vec(1u32..50, 1..4), 1..4), budget in 1usize..10
    ) {
        let marginals: Vec<Vec<(u32, f32)>> = weights.iter().map(|w| {
            let total: u32 = w.iter().sum();
            let mut c: Vec<(u32, f32)> = w.iter().enumerate().map(|(t, &x)| (t as u32, (x as f32 / total as f32).ln())).collect();
            c.sort_by(|a, b| b.1.total_cmp(&a.1));
            c
        }).collect();
        let tree = DraftTree::best_first(0, budget, &marginals).unwrap();
        let mut every = vec![];
        let mut level = vec![0.0f64];
        for candidates in &marginals {
            level = level.iter().flat_map(|&base| candidates.iter().map(move |c| base + f64::from(c.1))).collect();
            every.extend(level.iter().copied());
        }
        every.sort_by(|a, b| b.total_cmp(a));
        every.truncate(budget);
        let mut got: Vec<f64> = (1..tree.rows())
            .map(|r| tree.path(r).iter().map(|&n| f64::from(tree.log_probs()[n])).sum())
            .collect();
        got.sort_by(|a, b| b.total_cmp(a));
        prop_assert_eq!(got.len(), every.len());
        for (a, b) in got.iter().zip(&every) {
            prop_assert!((a - b).abs() < 1e-9, "{} {}", a, b);
        }
    }
}

#[test]
fn a_spine_only_tree_equals_the_chain() {
    let marginals = vec![vec![(5, -0.1)], vec![(6, -0.2)], vec![(7, -0.3)]];
    let tree = DraftTree::best_first(1, 8, &marginals).unwrap();
    assert_eq!(tree, DraftTree::chain(1, &[(5, -0.1), (6, -0.2), (7, -0.3)]).unwrap());
}

#[test]
fn malformed_trees_are_refused_with_a_sentence() {
    assert_eq!(DraftTree::new(0, &[(1, 5, 0.0)]), Err(TreeError::ParentAfterChild { row: 1, parent: 1 }));
    assert_eq!(DraftTree::new(0, &[(0, 5, 0.0), (0, 5, -1.0)]), Err(TreeError::TwinSiblings { row: 2, token: 5 }));
    assert!(DraftTree::teacher_forced(0, &[(0, 5, 0.0), (0, 5, -1.0)]).is_ok());
    assert!(matches!(DraftTree::new(0, &[(0, 5, 0.5)]), Err(TreeError::LogProb { row: 1, .. })));
    assert!(matches!(DraftTree::new(0, &[(0, 5, f32::NAN)]), Err(TreeError::LogProb { row: 1, .. })));
    let unsorted = [vec![(1, -2.0), (2, -1.0)]];
    assert_eq!(DraftTree::best_first(0, 4, &unsorted), Err(TreeError::UnsortedCandidates { depth: 1 }));
}
