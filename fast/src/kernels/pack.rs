//! Weight matrices packed for [`super::linear`]: panels of 32 outputs, `[panel][input][32]`, zero padded. Stored as f32, bf16,
//! f16 or 8-bit codes with a bf16 scale per group of inputs; every stored weight stands for one exact f32.

use super::buffer::{Buffer, Plain};
use super::lanes::{Bf16, F16};
use half::{bf16, f16};

/// Outputs of a panel: two vectors of 16 lanes.
pub(super) const PANEL: usize = 32;

/// A matrix `[outputs, inputs]`, possibly of several stacked parts (fused projections).
#[derive(Clone)]
pub struct Packed {
    pub(super) parts: Vec<Part>,
    inputs: usize,
}

#[derive(Clone)]
pub(super) struct Part {
    pub outputs: usize,
    pub storage: Storage,
}

#[derive(Clone)]
pub(super) enum Storage {
    F32(Buffer<f32>),
    Bf16(Buffer<Bf16>),
    F16(Buffer<F16>),
    /// `codes: [panel][input][32]`, `scales: [panel][group][32]`.
    Q8 {
        codes: Buffer<i8>,
        scales: Buffer<Bf16>,
        group: usize,
    },
}

impl Packed {
    /// From row-major `[outputs, inputs]`. Errors: an empty matrix, or a length that is not the product.
    pub fn from_f32(weights: &[f32], outputs: usize, inputs: usize) -> Result<Self, PackError> {
        check(weights.len(), outputs, inputs)?;
        Ok(Self::one(outputs, inputs, Storage::F32(pack(outputs, inputs, |at| weights[at]))))
    }

    /// As [`Packed::from_f32`].
    pub fn from_bf16(weights: &[bf16], outputs: usize, inputs: usize) -> Result<Self, PackError> {
        check(weights.len(), outputs, inputs)?;
        Ok(Self::one(outputs, inputs, Storage::Bf16(pack(outputs, inputs, |at| Bf16(weights[at].to_bits())))))
    }

    /// As [`Packed::from_f32`].
    pub fn from_f16(weights: &[f16], outputs: usize, inputs: usize) -> Result<Self, PackError> {
        check(weights.len(), outputs, inputs)?;
        Ok(Self::one(outputs, inputs, Storage::F16(pack(outputs, inputs, |at| F16(weights[at].to_bits())))))
    }

    /// A weight is `scale * code`, exactly. `codes: [outputs, inputs]`, `scales: [outputs, ceil(inputs / group)]`, both
    /// row-major. Errors: as [`Packed::from_f32`], and a group of 0.
    pub fn from_q8(codes: &[i8], scales: &[bf16], shape: (usize, usize), group: usize) -> Result<Self, PackError> {
        let (outputs, inputs) = shape;
        check(codes.len(), outputs, inputs)?;
        if group == 0 {
            return Err(PackError::Group);
        }
        let groups = inputs.div_ceil(group);
        check(scales.len(), outputs, groups)?;
        let scales = pack(outputs, groups, |at| Bf16(scales[at].to_bits()));
        Ok(Self::one(outputs, inputs, Storage::Q8 { codes: pack(outputs, inputs, |at| codes[at]), scales, group }))
    }

    /// Stacks matrices of equal inputs; storages may differ. Errors: no matrix, or unequal inputs.
    pub fn concat_rows(matrices: Vec<Packed>) -> Result<Self, PackError> {
        let inputs = matrices.first().ok_or(PackError::Empty { outputs: 0, inputs: 0 })?.inputs;
        if let Some(other) = matrices.iter().find(|m| m.inputs != inputs) {
            return Err(PackError::Inputs { expected: inputs, found: other.inputs });
        }
        Ok(Self { parts: matrices.into_iter().flat_map(|m| m.parts).collect(), inputs })
    }

    fn one(outputs: usize, inputs: usize, storage: Storage) -> Self {
        Self { parts: vec![Part { outputs, storage }], inputs }
    }

    /// Rows of the matrix.
    pub fn outputs(&self) -> usize {
        self.parts.iter().map(|p| p.outputs).sum()
    }

    /// Columns of the matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes that one pass reads, padding included.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|p| p.storage.bytes()).sum()
    }

    /// Row `i` as f32, into `inputs` floats: an embedding's look-up.
    ///
    /// # Panics
    /// If the row or the length is wrong.
    pub fn row(&self, i: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.inputs, "a row has {} floats", self.inputs);
        let mut row = i;
        for part in &self.parts {
            if row < part.outputs {
                return out.iter_mut().enumerate().for_each(|(k, x)| *x = part.storage.weight(row, k, self.inputs));
            }
            row -= part.outputs;
        }
        panic!("row {i} of a matrix of {} rows", self.outputs());
    }
}

impl Storage {
    fn bytes(&self) -> usize {
        match self {
            Self::F32(w) => 4 * w.as_slice().len(),
            Self::Bf16(w) => 2 * w.as_slice().len(),
            Self::F16(w) => 2 * w.as_slice().len(),
            Self::Q8 { codes, scales, .. } => codes.as_slice().len() + 2 * scales.as_slice().len(),
        }
    }

    fn weight(&self, row: usize, k: usize, inputs: usize) -> f32 {
        let at = place(row, k, inputs);
        match self {
            Self::F32(w) => w.as_slice()[at],
            Self::Bf16(w) => bf16::from_bits(w.as_slice()[at].0).to_f32(),
            Self::F16(w) => f16::from_bits(w.as_slice()[at].0).to_f32(),
            Self::Q8 { codes, scales, group } => {
                let scale = scales.as_slice()[place(row, k / group, inputs.div_ceil(*group))];
                bf16::from_bits(scale.0).to_f32() * f32::from(codes.as_slice()[at])
            }
        }
    }
}

fn place(row: usize, k: usize, inputs: usize) -> usize {
    (row / PANEL * inputs + k) * PANEL + row % PANEL
}

fn pack<T: Plain>(outputs: usize, inputs: usize, weight: impl Fn(usize) -> T) -> Buffer<T> {
    let mut packed = Buffer::zeroed(outputs.div_ceil(PANEL) * inputs * PANEL);
    let slots = packed.as_mut_slice();
    for row in 0..outputs {
        for k in 0..inputs {
            slots[place(row, k, inputs)] = weight(row * inputs + k);
        }
    }
    packed
}

fn check(len: usize, outputs: usize, inputs: usize) -> Result<(), PackError> {
    match outputs.checked_mul(inputs) {
        Some(0) => Err(PackError::Empty { outputs, inputs }),
        Some(expected) if expected == len => Ok(()),
        _ => Err(PackError::Length { outputs, inputs, found: len }),
    }
}

/// Why numbers are not a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// Without outputs or inputs.
    #[error("a matrix of {outputs} outputs and {inputs} inputs is empty")]
    Empty {
        /// Rows.
        outputs: usize,
        /// Columns.
        inputs: usize,
    },
    /// Length and shape disagree.
    #[error("a matrix of {outputs} by {inputs} has {found} elements, expected the product")]
    Length {
        /// Rows.
        outputs: usize,
        /// Columns, or groups of a row.
        inputs: usize,
        /// Elements given.
        found: usize,
    },
    /// Stacked matrices read different inputs.
    #[error("a stacked matrix has {found} inputs, expected {expected} as in the first")]
    Inputs {
        /// Of the first.
        expected: usize,
        /// Of the other.
        found: usize,
    },
    /// No inputs share a scale.
    #[error("a quantisation group of 0 inputs, expected at least 1")]
    Group,
}
