//! What can go wrong in the engine, as sentences: where, what was found, what was expected, the way out.
//! Kernels never fail; everything here is about files, requests and trees.

use specdec::{ConfigError, DrafterKind, RequestError};

/// Why the engine refused.
#[derive(Debug, thiserror::Error)]
pub enum FastError {
    /// The operating system refused a file.
    #[error("{file}: {found}")]
    Read {
        /// Path of the file.
        file: String,
        /// The system's words.
        found: String,
    },
    /// A file that is not what its name promises.
    #[error("{file}: {found}, expected {expected}")]
    Format {
        /// Path of the file.
        file: String,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: String,
    },
    /// A tensor that no file has.
    #[error("{file}: tensor {tensor} is missing (is the checkpoint complete?)")]
    Missing {
        /// Folder or file searched.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor of the wrong shape, type or content.
    #[error("{file}: tensor {tensor} has {found}, expected {expected}")]
    Tensor {
        /// Path of the file.
        file: String,
        /// The tensor.
        tensor: String,
        /// What it has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// A refused config.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A refused request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A drafter that came without weights.
    #[error("drafter {wanted} is not in this model, which has {available} (set --drafter)")]
    NoDrafter {
        /// What was asked for.
        wanted: DrafterKind,
        /// What there is.
        available: String,
    },
    /// Rows that do not fit: a tree too wide, a sequence beyond the session's room, an id without an embedding.
    #[error("{what} is {found}, expected {expected}")]
    Bounds {
        /// The quantity.
        what: &'static str,
        /// Its value.
        found: usize,
        /// The rule.
        expected: String,
    },
}

impl FastError {
    pub(crate) fn bounds(what: &'static str, found: usize, expected: impl Into<String>) -> Self {
        Self::Bounds { what, found, expected: expected.into() }
    }
}
