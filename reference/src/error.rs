//! What can go wrong, as sentences: where, what was found, what was expected, and the way out.
//! Knows the words; the checks are where the data is.

use specdec::{ConfigError, DrafterKind, RequestError};

/// Every error of the reference.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReferenceError {
    /// A file that could not be read at all.
    #[error("{file}: {reason} (give a model folder with config.json and model.safetensors)")]
    Read {
        /// Path of the file.
        file: String,
        /// The system's words.
        reason: String,
    },
    /// A configuration that was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A request that was refused.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A weights file or an index that is not what it says it is.
    #[error("{file}: {found}, expected {expected}")]
    File {
        /// Path of the file.
        file: String,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// A tensor with the wrong shape, type, place or values, or none at all.
    #[error("{file}: tensor {tensor} {found}, expected {expected}")]
    Tensor {
        /// Path of the file.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// Weights so large that the arithmetic overflows.
    #[error("the model's logits hold {found}, expected finite numbers (are the weights damaged?)")]
    Overflow {
        /// The value.
        found: f64,
    },
    /// A drafter that this model does not have.
    #[error("the model has no drafter {asked}, expected one of {available} (set --drafter)")]
    NoDrafter {
        /// The one asked for.
        asked: DrafterKind,
        /// Those there are, by name.
        available: String,
    },
    /// A tree that does not continue the prompt.
    #[error("{found}, expected {expected}")]
    Tree {
        /// What the tree holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
}

impl ReferenceError {
    pub(crate) fn file(file: &str, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::File { file: file.into(), found: found.into(), expected: expected.into() }
    }

    pub(crate) fn tensor(file: &str, tensor: &str, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Tensor { file: file.into(), tensor: tensor.into(), found: found.into(), expected: expected.into() }
    }
}
