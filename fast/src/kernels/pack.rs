//! Weight matrices packed for [`super::linear`]: panels of 32 outputs, `[panel][input][32]`, zero padded. Stored as f32, bf16,
//! f16 or 8-bit codes with a bf16 scale per group of inputs, every stored weight standing for one exact f32; or as codes
//! that multiply 8-bit activations ([`super::codes`]).

use super::buffer::{Buffer, Plain};
use super::codes::Codes;
use super::hadamard::Signs;
use super::lanes::{Bf16, F16};
use half::{bf16, f16};

/// Outputs of a panel: two vectors of 16 lanes.
pub(super) const PANEL: usize = 32;

/// A matrix `[outputs, inputs]`, possibly of several stacked parts (fused projections).
#[derive(Clone)]
pub struct Packed {
    pub(super) parts: Vec<Part>,
    /// Of the transform that parts of codes and rotated parts share.
    pub(super) signs: Option<Signs>,
    inputs: usize,
}

#[derive(Clone)]
pub(super) struct Part {
    pub outputs: usize,
    pub storage: Storage,
    /// Float weights in the rotated basis.
    pub rotated: bool,
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
    /// Multiplied with 8-bit activations.
    Codes(Codes),
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

    /// L: 8-bit codes for 8-bit activations; a weight is `scale * code`. Shapes as in [`Packed::from_q8`]; `group` is 32, 64
    /// or 128. With signs the codes are of `W D H / 32`.
    pub fn from_l(
        codes: &[i8],
        scales: &[bf16],
        shape: (usize, usize),
        group: usize,
        signs: Option<&Signs>,
    ) -> Result<Self, PackError> {
        Self::of_codes(shape, Codes::eight(codes, scales, shape, group)?, signs)
    }

    /// M: 4-bit codes for 8-bit activations; a weight is `scale * (code - zero)`. `codes: [outputs, ceil(inputs / 2)]` and
    /// `zeros: [outputs, ceil(groups / 2)]` hold two a byte, the even one in the low half. Otherwise as [`Packed::from_l`].
    pub fn from_m(
        (codes, scales, zeros): (&[u8], &[bf16], &[u8]),
        shape: (usize, usize),
        group: usize,
        signs: Option<&Signs>,
    ) -> Result<Self, PackError> {
        Self::of_codes(shape, Codes::four(codes, scales, zeros, shape, group)?, signs)
    }

    fn of_codes((outputs, inputs): (usize, usize), codes: Codes, signs: Option<&Signs>) -> Result<Self, PackError> {
        Self::one(outputs, inputs, Storage::Codes(codes)).with_signs(signs)
    }

    /// Float weights that are of `W D H / 32`: they will multiply the transformed input.
    pub fn rotated(mut self, signs: &Signs) -> Result<Self, PackError> {
        self.parts.iter_mut().for_each(|part| part.rotated = true);
        self.with_signs(Some(signs))
    }

    fn with_signs(self, signs: Option<&Signs>) -> Result<Self, PackError> {
        match signs {
            Some(signs) if signs.as_slice().len() != self.inputs => {
                Err(PackError::Signs { expected: self.inputs, found: signs.as_slice().len() })
            }
            signs => Ok(Self { signs: signs.cloned(), ..self }),
        }
    }

    /// Stacks matrices of equal inputs; storages may differ, signs and groups of codes may not. Errors: no matrix, or unequal
    /// inputs, signs or groups.
    pub fn concat_rows(matrices: Vec<Packed>) -> Result<Self, PackError> {
        let inputs = matrices.first().ok_or(PackError::Empty { outputs: 0, inputs: 0 })?.inputs;
        if let Some(other) = matrices.iter().find(|m| m.inputs != inputs) {
            return Err(PackError::Inputs { expected: inputs, found: other.inputs });
        }
        let rotates = |m: &&Packed| m.parts.iter().any(|p| p.rotated || matches!(p.storage, Storage::Codes(_)));
        let signs = matrices.iter().find(rotates).and_then(|m| m.signs.clone());
        if matrices.iter().filter(rotates).any(|m| m.signs != signs) {
            return Err(PackError::Unlike { what: "signs" });
        }
        let stacked = Self { signs, inputs, parts: matrices.into_iter().flat_map(|m| m.parts).collect() };
        let groups: Vec<usize> = stacked.code_groups().collect();
        if groups.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(PackError::Unlike { what: "groups" });
        }
        Ok(stacked)
    }

    /// The chosen rows, in order, stored as they are. Rows of one part only: what a table is.
    ///
    /// # Panics
    /// If a row is out of range, or the matrix is a stack.
    pub fn select(&self, rows: &[usize]) -> Self {
        let [part] = &self.parts[..] else { panic!("rows are chosen from one matrix, not from a stack") };
        assert!(rows.iter().all(|&row| row < part.outputs), "a row of {rows:?} is not among {}", part.outputs);
        let (outputs, inputs) = (rows.len(), self.inputs);
        let storage = match &part.storage {
            Storage::F32(w) => Storage::F32(select(w, rows, inputs)),
            Storage::Bf16(w) => Storage::Bf16(select(w, rows, inputs)),
            Storage::F16(w) => Storage::F16(select(w, rows, inputs)),
            Storage::Q8 { codes, scales, group } => Storage::Q8 {
                codes: select(codes, rows, inputs),
                scales: select(scales, rows, inputs.div_ceil(*group)),
                group: *group,
            },
            Storage::Codes(codes) => Storage::Codes(codes.select(rows)),
        };
        Self { parts: vec![Part { outputs, storage, rotated: part.rotated }], signs: self.signs.clone(), inputs }
    }

    /// Group sizes of the parts that are codes.
    pub(super) fn code_groups(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().filter_map(|p| match &p.storage {
            Storage::Codes(codes) => Some(codes.group),
            _ => None,
        })
    }

    fn one(outputs: usize, inputs: usize, storage: Storage) -> Self {
        Self { parts: vec![Part { outputs, storage, rotated: false }], signs: None, inputs }
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
                let rotated = part.storage.row(row, out) || part.rotated;
                if let (true, Some(signs)) = (rotated, &self.signs) {
                    signs.unfold(out);
                }
                return;
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
            Self::Codes(codes) => codes.bytes(),
        }
    }

    /// The weights of output `row`, and whether codes hold them: in the basis of the codes then.
    fn row(&self, row: usize, out: &mut [f32]) -> bool {
        let inputs = out.len();
        let weights = out.iter_mut().enumerate().map(|(k, x)| (k, place(row, k, inputs), x));
        match self {
            Self::F32(w) => weights.for_each(|(_, at, x)| *x = w.as_slice()[at]),
            Self::Bf16(w) => weights.for_each(|(_, at, x)| *x = bf16::from_bits(w.as_slice()[at].0).to_f32()),
            Self::F16(w) => weights.for_each(|(_, at, x)| *x = f16::from_bits(w.as_slice()[at].0).to_f32()),
            Self::Q8 { codes, scales, group } => weights.for_each(|(k, at, x)| {
                let scale = scales.as_slice()[place(row, k / group, inputs.div_ceil(*group))];
                *x = bf16::from_bits(scale.0).to_f32() * f32::from(codes.as_slice()[at]);
            }),
            Self::Codes(codes) => {
                codes.row(row, out);
                return true;
            }
        }
        false
    }
}

fn select<T: Plain>(from: &Buffer<T>, rows: &[usize], inputs: usize) -> Buffer<T> {
    let mut chosen = Buffer::zeroed(rows.len().div_ceil(PANEL) * inputs * PANEL);
    for (to, &row) in rows.iter().enumerate() {
        (0..inputs).for_each(|k| chosen.as_mut_slice()[place(to, k, inputs)] = from.as_slice()[place(row, k, inputs)]);
    }
    chosen
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

pub(super) fn check(len: usize, outputs: usize, inputs: usize) -> Result<(), PackError> {
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
    /// A group that integer sums cannot take.
    #[error("a group of {found} inputs, expected 32, 64 or 128")]
    CodeGroup {
        /// Inputs.
        found: usize,
    },
    /// Signs of another input length.
    #[error("{found} signs of the Hadamard transform, expected {expected}, one for each input")]
    Signs {
        /// Inputs.
        expected: usize,
        /// Signs.
        found: usize,
    },
    /// Stacked matrices cannot share one transformed input.
    #[error("stacked matrices have different {what}, expected the same, since they read one quantised input")]
    Unlike {
        /// What differs.
        what: &'static str,
    },
}
