//! What can go wrong with a device, as sentences.

use thiserror::Error;

/// A device that is missing, refuses a shader, or fails.
#[derive(Debug, Error)]
pub enum GpuError {
    /// The device is not here.
    #[error("device {device}: found {found}, expected {expected}")]
    Absent {
        /// `cuda` or `emulator`.
        device: &'static str,
        /// What is here instead.
        found: String,
        /// What would help.
        expected: String,
    },
    /// The device's compiler refuses the shaders.
    #[error("device {device}: its compiler refuses the shaders: {message}")]
    Compile {
        /// As in `Absent`.
        device: &'static str,
        /// The compiler's first words.
        message: String,
    },
    /// A kernel broke a rule or failed.
    #[error("device {device}, kernel {kernel}: {message}")]
    Kernel {
        /// As in `Absent`.
        device: &'static str,
        /// The kernel's name.
        kernel: &'static str,
        /// What happened.
        message: String,
    },
    /// Memory, copies, waiting.
    #[error("device {device}: {what} failed: {message}")]
    Device {
        /// As in `Absent`.
        device: &'static str,
        /// What was tried.
        what: String,
        /// What the driver says.
        message: String,
    },
}

impl GpuError {
    pub(super) fn absent(device: &'static str, found: &str, expected: &str) -> Self {
        Self::Absent { device, found: found.into(), expected: expected.into() }
    }
}
