//! Losslessness in exact rationals on random Markov tables, and the identities that papers state between rules.

use super::*;
use num_rational::BigRational;
use num_traits::{One, Zero};
use proptest::{prelude::*, test_runner::RngSeed};

type Exact = Tables<BigRational>;

/// The same cases in every run.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Default::default() }
}

fn table(vocab: usize) -> impl Strategy<Value = Vec<Vec<u32>>> {
    // Zeros in about a third of the places, never a whole row.
    let row = prop::collection::vec(prop_oneof![1 => Just(0u32), 2 => 1u32..9], vocab).prop_map(|mut w| {
        w[0] += u32::from(w.iter().all(|&x| x == 0));
        w
    });
    prop::collection::vec(row, vocab)
}

fn tables(vocab: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Exact> {
    vocab.prop_flat_map(|v| (table(v), table(v))).prop_map(|(p, q)| Exact::new(&p, &q).expect("no row of zeros"))
}

fn tree(vocab: u32) -> impl Strategy<Value = DraftTree> {
    prop::collection::vec((0usize..99, 0..vocab), 0..6).prop_map(|raw| {
        let mut drafted: Vec<(usize, u32, f32)> = Vec::new();
        for (pick, token) in raw {
            let parent = pick % (drafted.len() + 1);
            if !drafted.iter().any(|d| d.0 == parent && d.1 == token) {
                drafted.push((parent, token, 0.0));
            }
        }
        DraftTree::new(0, &drafted).expect("parents come first and siblings differ")
    })
}

fn is_lossless(rule: Rule, tables: &Exact, drafts: &Drafts) -> bool {
    let law = emitted(rule, tables, 0, drafts);
    let length = drafts.depth() + 1;
    complete(&law, tables, 0, length) == ancestral(tables, 0, length)
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn single_draft_rejection_and_block_verification_are_exact_on_chains(tables in tables(2..=4), g in 1usize..=3) {
        for rule in [Rule::Rejection, Rule::Block] {
            prop_assert!(is_lossless(rule, &tables, &Drafts::Random(vec![1; g])), "{}", rule.name());
        }
    }

    #[test]
    fn rejection_without_replacement_is_exact_over_random_trees(
        tables in tables(2..=4), widths in prop::collection::vec(1usize..=3, 1..=3)
    ) {
        prop_assert!(is_lossless(Rule::WithoutReplacement, &tables, &Drafts::Random(widths)));
    }

    #[test]
    fn sample_and_match_and_deterministic_children_are_exact_on_every_fixed_tree(tables in tables(4..=4), tree in tree(4)) {
        for rule in [Rule::SampleAndMatch, Rule::DeterministicChildren] {
            prop_assert!(is_lossless(rule, &tables, &Drafts::Fixed(tree.clone())), "{}", rule.name());
        }
    }

    /// Their next tokens are joint too: two rounds in a row give the joint law of both.
    #[test]
    fn two_rounds_give_the_joint_law(tables in tables(2..=3), tree in tree(2)) {
        let rounds = [
            (Rule::Rejection, Drafts::Random(vec![1, 1])),
            (Rule::Block, Drafts::Random(vec![1, 1])),
            (Rule::WithoutReplacement, Drafts::Random(vec![2, 1])),
            (Rule::Traversal, Drafts::Random(vec![2, 1])),
            (Rule::SampleAndMatch, Drafts::Fixed(tree)),
        ];
        for (rule, drafts) in rounds {
            let length = 2 * (drafts.depth() + 1);
            let law = emitted_in_rounds(rule, &tables, 0, &drafts, 2);
            prop_assert_eq!(complete(&law, &tables, 0, length), ancestral(&tables, 0, length), "{}", rule.name());
        }
    }

    /// E[tau] = 1 + sum over drafted nodes of the product of target probabilities on their paths.
    #[test]
    fn sample_and_match_expects_one_token_and_the_path_products(tables in tables(4..=4), tree in tree(4)) {
        let law = emitted(Rule::SampleAndMatch, &tables, 0, &Drafts::Fixed(tree.clone()));
        let edge = |w: &[usize]| tables.p[tree.tokens()[w[0]] as usize][tree.tokens()[w[1]] as usize].clone();
        let product = |row| tree.path(row).windows(2).map(edge).fold(BigRational::one(), |product, x| product * x);
        let expected = (1..tree.rows()).map(product).fold(BigRational::one(), |total, x| total + x);
        prop_assert_eq!(expected_tokens(&law), expected);
    }

    /// `DraftTree::follow`, fed with independent samples at every row, emits the law that the rule states.
    #[test]
    fn the_production_walk_is_sample_and_match(tables in tables(3..=3), tree in tree(3)) {
        let mut law = Law::new();
        let mut samples = vec![0u32; tree.rows()];
        loop {
            let token = |row: usize| tables.p[tree.tokens()[row] as usize][samples[row] as usize].clone();
            let reach = (0..tree.rows()).map(token).fold(BigRational::one(), |product, x| product * x);
            let acceptance = tree.follow(&samples);
            let path = acceptance.path.iter().map(|&row| tree.tokens()[row]);
            let sequence: Vec<u32> = path.chain([acceptance.next_token]).collect();
            prop_assert_eq!(sequence.len(), acceptance.emitted());
            add(&mut law, sequence, reach);
            let Some(row) = samples.iter().position(|&s| s < 2) else { break };
            samples[row] += 1;
            samples[..row].fill(0);
        }
        prop_assert_eq!(law, emitted(Rule::SampleAndMatch, &tables, 0, &Drafts::Fixed(tree)));
    }

    #[test]
    fn block_verification_never_expects_fewer_tokens_than_rejection(tables in tables(2..=4), g in 1usize..=3) {
        let drafts = Drafts::Random(vec![1; g]);
        let tau = |rule| expected_tokens(&emitted(rule, &tables, 0, &drafts));
        prop_assert!(tau(Rule::Block) >= tau(Rule::Rejection));
    }

    #[test]
    fn traversal_on_a_chain_is_block_verification(tables in tables(2..=4), g in 1usize..=3) {
        let drafts = Drafts::Random(vec![1; g]);
        prop_assert_eq!(emitted(Rule::Traversal, &tables, 0, &drafts), emitted(Rule::Block, &tables, 0, &drafts));
    }

    #[test]
    fn without_replacement_of_width_1_is_single_draft_rejection(tables in tables(2..=4), g in 1usize..=3) {
        let drafts = Drafts::Random(vec![1; g]);
        prop_assert_eq!(
            emitted(Rule::WithoutReplacement, &tables, 0, &drafts),
            emitted(Rule::Rejection, &tables, 0, &drafts)
        );
    }

    /// Row by row and tree by tree are two ways to the same average.
    #[test]
    fn averaging_a_walk_row_by_row_equals_averaging_over_trees(tables in tables(3..=3), widths in prop::collection::vec(1usize..=2, 1..=2)) {
        for rule in [Rule::Greedy, Rule::SampleAndMatch, Rule::DeterministicChildren, Rule::WithoutReplacement] {
            prop_assert_eq!(walked(rule, &tables, 0, &widths), over_trees(rule, &tables, 0, &widths), "{}", rule.name());
        }
    }

    #[test]
    fn drawing_the_whole_support_always_accepts(tables in tables(2..=4)) {
        let tables = Exact { q: tables.p.clone(), ..tables };
        let vocab = tables.p.len();
        let law = emitted(Rule::WithoutReplacement, &tables, 0, &Drafts::Random(vec![vocab]));
        prop_assert!(law.keys().all(|sequence| sequence.len() == 2));
    }

    #[test]
    fn greedy_emits_the_argmax_path_and_nothing_else(tables in tables(3..=3), tree in tree(3)) {
        let law = emitted(Rule::Greedy, &tables, 0, &Drafts::Fixed(tree));
        prop_assert_eq!(law.len(), 1);
        for (sequence, x) in law {
            prop_assert!(x.is_one());
            let mut last = 0;
            for token in sequence {
                let p = &tables.p[last];
                prop_assert!((0..p.len()).all(|y| p[y] < p[token as usize] || (p[y] == p[token as usize] && y >= token as usize)));
                last = token as usize;
            }
        }
    }
}

proptest! {
    // Every tree is listed: (3, 2) over 3 tokens has 1296 of them.
    #![proptest_config(cases(6))]

    #[test]
    fn traversal_verification_is_exact_over_random_trees(tables in tables(3..=3)) {
        for widths in [vec![1, 1], vec![2], vec![2, 1], vec![2, 2], vec![1, 2], vec![3, 2]] {
            prop_assert!(is_lossless(Rule::Traversal, &tables, &Drafts::Random(widths)));
        }
    }

    #[test]
    fn traversal_verification_is_exact_over_four_tokens_and_three_levels(tables in tables(4..=4)) {
        for widths in [vec![3], vec![2, 1], vec![1, 2], vec![1, 1, 1], vec![2, 1, 1]] {
            prop_assert!(is_lossless(Rule::Traversal, &tables, &Drafts::Random(widths)));
        }
    }
}

fn fixed_tables() -> Exact {
    Exact::new(&[vec![5, 1, 1], vec![2, 3, 1], vec![1, 1, 4]], &[vec![2, 3, 2], vec![1, 1, 1], vec![3, 1, 1]])
        .expect("no row of zeros")
}

#[test]
fn one_fixed_tree_drawn_without_replacement_is_not_exact() {
    let tree = DraftTree::new(0, &[(0, 1, 0.0), (0, 0, 0.0)]).unwrap();
    for rule in [Rule::WithoutReplacement, Rule::Traversal] {
        assert!(!is_lossless(rule, &fixed_tables(), &Drafts::Fixed(tree.clone())), "{}", rule.name());
    }
}

#[test]
fn typical_acceptance_is_caught() {
    assert!(!is_lossless(Rule::Typical, &fixed_tables(), &Drafts::Random(vec![1, 1])));
}

/// Chain acceptance on a tree whose children are the drafter's two best tokens, as if they had been drawn.
#[test]
fn top_k_children_treated_as_draws_are_caught() {
    let tables = fixed_tables();
    let best_two = DraftTree::new(0, &[(0, 1, 0.0), (0, 0, 0.0)]).unwrap();
    assert!(!is_lossless(Rule::WithoutReplacement, &tables, &Drafts::Fixed(best_two.clone())));
    assert!(is_lossless(Rule::DeterministicChildren, &tables, &Drafts::Fixed(best_two)));
}

#[test]
fn a_rule_told_another_draft_law_than_the_one_drawn_from_is_caught() {
    let told = fixed_tables();
    let mut law = Law::new();
    for (x, drawn) in told.p[0].clone().into_iter().enumerate() {
        // Drawn from p[0], accepted against q[0].
        let tree = DraftTree::chain(0, &[(x as u32, 0.0)]).unwrap();
        for (sequence, y) in emitted(Rule::Rejection, &told, 0, &Drafts::Fixed(tree)) {
            add(&mut law, sequence, drawn.clone() * y);
        }
    }
    assert!(!distance(&complete(&law, &told, 0, 2), &ancestral(&told, 0, 2)).is_zero());
}

#[test]
fn without_drafts_every_rule_emits_one_token_of_the_target() {
    let tables = fixed_tables();
    for rule in Rule::ALL.into_iter().filter(|&rule| rule != Rule::Greedy) {
        let law = emitted(rule, &tables, 2, &Drafts::Fixed(DraftTree::root(0)));
        assert_eq!(law, ancestral(&tables, 2, 1), "{}", rule.name());
    }
}

#[test]
fn draws_without_replacement_cover_all_orders_once() {
    let found = draws(&fixed_tables().q[0], 5);
    assert_eq!(found.len(), 6);
    let total = found.into_iter().fold(BigRational::zero(), |total, (_, x)| total + x);
    assert!(total.is_one());
}

/// The introduction of the block verification paper (arXiv 2403.10444): p = (1/3, 2/3), q = (2/3, 1/3) whatever came before,
/// two drafts. Token-wise verification accepts 10/9 drafts on average, block verification 11/9.
#[test]
fn the_papers_example_accepts_10_ninths_token_wise_and_11_ninths_as_a_block() {
    let tables = Exact::new(&[vec![1, 2], vec![1, 2]], &[vec![2, 1], vec![2, 1]]).expect("no row of zeros");
    let accepted = |rule| expected_tokens(&emitted(rule, &tables, 0, &Drafts::Random(vec![1, 1]))) - BigRational::one();
    let ninths = |n: i32| BigRational::new(n.into(), 9.into());
    assert_eq!(accepted(Rule::Rejection), ninths(10));
    assert_eq!(accepted(Rule::Block), ninths(11));
    assert_eq!(accepted(Rule::Traversal), ninths(11));
}
