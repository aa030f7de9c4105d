//! The test models, loaded once, and the fixture's expected tensors. Test code only.

use crate::{Reference, model::Target, state::State, weights::Checkpoint};
use ndarray::{Array, Array2, ArrayBase, Data, Dimension, Ix2, Ix3};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// An f64 engine against files in f64; the files' own two oracles agree to about 1e-13.
pub const EXACT_F64: f64 = 1e-10;

pub fn root(part: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(part)
}

pub fn fixture_dir() -> PathBuf {
    root("tests/fixtures/qwen35-tiny-a")
}

/// The random Qwen3.5 fixture in the published, nested layout.
pub fn nested() -> &'static Reference {
    static MODEL: OnceLock<Reference> = OnceLock::new();
    MODEL.get_or_init(|| Reference::load(&fixture_dir()).expect("the fixture loads"))
}

/// The trained default model with all drafters.
pub fn straw_tiny() -> &'static Reference {
    static MODEL: OnceLock<Reference> = OnceLock::new();
    MODEL.get_or_init(|| Reference::load(&root("models/straw-tiny")).expect("the default model loads"))
}

/// A value of the fixture's `reference.json` by JSON pointer.
pub fn expected(pointer: &str) -> Value {
    static JSON: OnceLock<Value> = OnceLock::new();
    let json = JSON.get_or_init(|| {
        let text = std::fs::read_to_string(fixture_dir().join("reference.json")).expect("readable");
        serde_json::from_str(&text).expect("JSON")
    });
    json.pointer(pointer).unwrap_or_else(|| panic!("reference.json has no {pointer}")).clone()
}

/// Token ids or node numbers.
pub fn ids<T: TryFrom<u64>>(pointer: &str) -> Vec<T> {
    list(&expected(pointer))
}

pub fn list<T: TryFrom<u64>>(value: &Value) -> Vec<T> {
    let number = |v: &Value| v.as_u64().and_then(|n| T::try_from(n).ok()).expect("a whole number");
    value.as_array().expect("a list").iter().map(number).collect()
}

/// One file of expected tensors.
pub struct Expected(Checkpoint);

impl Expected {
    pub fn open(name: &str) -> Self {
        Self::open_in(&fixture_dir(), name)
    }

    pub fn open_in(dir: &Path, name: &str) -> Self {
        Self(Checkpoint::of_files(dir, &[name.into()]).expect("readable"))
    }

    fn get<D: Dimension>(&self, name: &str, dim: D) -> Array<f64, D> {
        self.0.tensor(name, dim).expect("an expected tensor")
    }

    /// Compares elementwise, shapes and NaN included.
    pub fn check<S: Data<Elem = f64>, D: Dimension>(&self, name: &str, found: &ArrayBase<S, D>, tolerance: f64) {
        near(name, found, &self.get(name, found.raw_dim()), tolerance);
    }

    /// The states of the layers named `PREFIXlayerN.*`.
    pub fn check_state(&self, prefix: &str, state: &State) {
        for (i, layer) in state.layers.iter().enumerate() {
            let name = |part: &str| format!("{prefix}layer{i}.{part}");
            match layer {
                crate::state::LayerState::Gdn(gdn) => {
                    self.check::<_, Ix3>(&name("recurrent"), &gdn.delta, EXACT_F64);
                    self.check::<_, Ix2>(&name("conv"), &gdn.tail.t(), EXACT_F64);
                }
                crate::state::LayerState::Attention(cache) if self.0.contains(&name("key")) => {
                    self.check(&name("key"), &cache.keys, EXACT_F64);
                    self.check(&name("value"), &cache.values, EXACT_F64);
                }
                crate::state::LayerState::Attention(_) => {}
            }
        }
    }

    /// A matrix as it is.
    pub fn matrix(&self, name: &str, rows: usize, columns: usize) -> Array2<f64> {
        self.get(name, Ix2(rows, columns))
    }
}

/// `|found - expected| <= tolerance` for every element; a NaN is never near.
pub fn near<A: Data<Elem = f64>, B: Data<Elem = f64>, D: Dimension>(
    what: &str,
    found: &ArrayBase<A, D>,
    expected: &ArrayBase<B, D>,
    tolerance: f64,
) {
    assert_eq!(found.shape(), expected.shape(), "{what}");
    let worst =
        found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, |a: f64, b| if b.is_nan() { b } else { a.max(b) });
    assert!(worst <= tolerance, "{what}: largest difference {worst:e}, allowed {tolerance:e}");
}

/// State after a prompt.
pub fn state_after(target: &Target, tokens: &[u32]) -> State {
    let mut state = State::new(&target.config);
    target.run(tokens, &mut state, &mut |_| {});
    state
}
