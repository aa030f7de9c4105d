//! What one sequence keeps between passes. Only a commit changes it, and a commit takes accepted rows only, so nothing
//! of a refused draft can stay: there is no rollback because nothing wrong is ever written.

use crate::{
    attention::KvCache,
    gdn::GdnState,
    layer::{LayerRows, MixerRows},
};
use specdec::{LayerKind, ModelConfig};

/// One layer's part.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerState {
    /// Convolution tail and delta state.
    Gdn(GdnState),
    /// Keys and values.
    Attention(KvCache),
}

/// All layers after `length` tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Committed tokens; the next one stands at this position.
    pub length: usize,
    /// In layer order.
    pub layers: Vec<LayerState>,
}

impl State {
    /// Before the first token.
    pub fn new(config: &ModelConfig) -> Self {
        let layer = |kind: &LayerKind| match (kind, &config.gdn) {
            (LayerKind::GatedDeltaNet, Some(dims)) => LayerState::Gdn(GdnState::new(dims)),
            _ => LayerState::Attention(KvCache::new(&config.attention)),
        };
        Self { length: 0, layers: config.layers.iter().map(layer).collect() }
    }

    /// Makes a path of a pass part of the sequence. `path`: rows from the one that continues this state downwards.
    pub fn commit(&mut self, pass: &[LayerRows], path: &[usize]) {
        let Some(&last) = path.last() else { return };
        self.length += path.len();
        for (state, rows) in self.layers.iter_mut().zip(pass) {
            match (state, &rows.mixer) {
                (LayerState::Gdn(state), MixerRows::Gdn(rows)) => *state = rows.states[last].clone(),
                (LayerState::Attention(cache), MixerRows::Attention(rows)) => cache.append(&rows.key, &rows.value, path),
                _ => unreachable!("a layer's rows come from its own mixer"),
            }
        }
    }
}
