//! A tree is its paths: on random trees every row equals plain decoding of its path, branches do not touch each other,
//! verification touches nothing, and a commit leaves what plain decoding would have left.

use crate::{
    fixture::{ids, near, nested, state_after},
    gdn_solve::solve,
    layer::MixerRows,
    model::Pass,
    rows::Rows,
    state::{LayerState, State},
};
use ndarray::{Array2, concatenate, prelude::*};
use proptest::{prelude::*, test_runner::RngSeed};
use specdec::DraftTree;

const CASES: u32 = 12;
/// The second witnesses reorder rounding.
const REORDERED_F64: f64 = 1e-10;

/// Chain, star, binary, comb or random; 1 to 33 rows; siblings may carry the same token.
fn trees() -> impl Strategy<Value = DraftTree> {
    (0usize..5, 0usize..=32, any::<u64>()).prop_map(|(shape, drafted, seed)| tree(shape, drafted, seed))
}

fn tree(shape: usize, drafted: usize, seed: u64) -> DraftTree {
    let mut word = seed;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) as usize
    };
    let node = |i: usize, pick: usize, token: usize| {
        let parent = match shape {
            0 => i,
            1 => 0,
            2 => i / 2,
            3 => i - i % 2,
            _ => pick % (i + 1),
        };
        (parent, (token % 277) as u32, 0.0)
    };
    let drafted: Vec<_> = (0..drafted).map(|i| node(i, next(), next())).collect();
    DraftTree::teacher_forced(60, &drafted).expect("parents come first")
}

fn base() -> State {
    state_after(&nested().target, &ids::<u32>("/short12"))
}

fn verify(tree: &DraftTree, base: &State) -> Pass {
    nested().target.forward(tree.tokens(), &Rows::tree(tree, base.length), base)
}

/// Plain decoding, one token a pass; returns the last logits and the state.
fn decode(tokens: impl Iterator<Item = u32>, mut state: State) -> (Array1<f64>, State) {
    let mut logits = Array1::zeros(0);
    for token in tokens {
        let pass = nested().target.forward(&[token], &Rows::chain(1, state.length), &state);
        state.commit(&pass.layers, &[0]);
        logits = pass.logits.row(0).to_owned();
    }
    (logits, state)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Default::default() })]

    #[test]
    fn every_path_is_plain_decoding_to_the_bit(tree in trees()) {
        let base = base();
        let untouched = base.clone();
        let pass = verify(&tree, &base);
        prop_assert_eq!(&base, &untouched, "verification wrote to the state");
        for row in 0..tree.rows() {
            let path = tree.path(row);
            let (logits, state) = decode(path.iter().map(|&r| tree.tokens()[r]), base.clone());
            prop_assert_eq!(pass.logits.row(row), logits.view(), "row {}", row);
            let mut committed = base.clone();
            committed.commit(&pass.layers, &path);
            prop_assert_eq!(committed, state, "row {}", row);
        }
    }

    #[test]
    fn perturbing_a_branch_leaves_all_other_rows_bit_equal(tree in trees(), pick in 0usize..32, token in 0u32..277) {
        prop_assume!(tree.drafted() > 0);
        let changed = 1 + pick % tree.drafted();
        let drafted: Vec<_> = (1..tree.rows())
            .map(|row| (tree.parents()[row].unwrap(), if row == changed { token } else { tree.tokens()[row] }, 0.0))
            .collect();
        let other = DraftTree::teacher_forced(tree.tokens()[0], &drafted).unwrap();
        let base = base();
        let (a, b) = (verify(&tree, &base), verify(&other, &base));
        for row in (0..tree.rows()).filter(|&row| !tree.path(row).contains(&changed)) {
            prop_assert_eq!(a.logits.row(row), b.logits.row(row), "row {}", row);
        }
    }

    #[test]
    fn refused_drafts_leave_no_trace(tree in trees(), pick in 0usize..33, continuation in prop::collection::vec(0u32..277, 1..4)) {
        let base = base();
        let path = tree.path(pick % tree.rows());
        let mut state = base.clone();
        state.commit(&verify(&tree, &base).layers, &path);
        let plain = decode(path.iter().map(|&r| tree.tokens()[r]), base).1;
        let (after, plain_after) = (decode(continuation.iter().copied(), state), decode(continuation.iter().copied(), plain));
        prop_assert_eq!(after, plain_after);
    }

    #[test]
    fn masked_solve_and_closed_form_commit_agree_with_the_recurrence(tree in trees()) {
        let base = base();
        let rows = Rows::tree(&tree, base.length);
        let pass = nested().target.forward(tree.tokens(), &rows, &base);
        for (layer, state) in pass.layers.iter().zip(&base.layers) {
            let (MixerRows::Gdn(gdn), LayerState::Gdn(state)) = (&layer.mixer, state) else { continue };
            let solved = solve(&gdn.inputs, &rows, &state.delta);
            for row in 0..rows.len() {
                for head in 0..state.delta.len_of(Axis(0)) {
                    near("solve", &solved.output(row, head), &gdn.core.slice(s![row, head, ..]), REORDERED_F64);
                }
                near("commit", &solved.state(row), &gdn.states[row].delta, REORDERED_F64);
            }
        }
    }

    #[test]
    fn any_prefill_chunking_gives_the_same_bits(cuts in prop::collection::vec(1usize..70, 1..5)) {
        let tokens: Vec<u32> = ids("/prompt64");
        let target = &nested().target;
        let whole = nested().logits(&tokens).unwrap();
        let mut state = State::new(&target.config);
        let (mut logits, mut rest) = (Array2::zeros((0, target.config.vocab_size)), &tokens[..]);
        for cut in cuts.into_iter().chain([64]) {
            let (chunk, later) = rest.split_at(cut.min(rest.len()));
            target.run_chunked(chunk, chunk.len().max(1), &mut state, &mut |pass| logits = concatenate![Axis(0), logits, pass.logits]);
            rest = later;
        }
        prop_assert_eq!(logits, whole);
        prop_assert_eq!(state, state_after(target, &tokens));
    }
}

#[test]
fn permuting_siblings_permutes_their_logits() {
    let base = base();
    let one = verify(&DraftTree::new(60, &[(0, 5, 0.0), (0, 9, 0.0), (1, 7, 0.0)]).unwrap(), &base).logits;
    let other = verify(&DraftTree::new(60, &[(0, 9, 0.0), (0, 5, 0.0), (2, 7, 0.0)]).unwrap(), &base).logits;
    assert_eq!(one.select(Axis(0), &[0, 2, 1, 3]), other);
}
