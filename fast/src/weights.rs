//! From named tensors to what the backend multiplies with: matrices packed once at load, fused where they share an input.
//! Knows the two name layouts (nested and flat) and straw's 8-bit storage; nothing of what a matrix is for.

use crate::FastError;
use crate::backend::{Backend, Buffer, Matrix, Norm};
use crate::checkpoint::{Checkpoint, Elements};
use half::bf16;
use specdec::QuantScheme;

/// A checkpoint under one name prefix.
pub(crate) struct Weights<'a> {
    backend: &'a Backend,
    checkpoint: &'a Checkpoint,
    prefix: String,
    group: usize,
}

impl<'a> Weights<'a> {
    /// `prefix` is put before every name. `quantisation` gives the group of 8-bit matrices.
    pub fn new(backend: &'a Backend, checkpoint: &'a Checkpoint, prefix: &str, quantisation: QuantScheme) -> Self {
        let group = match quantisation {
            QuantScheme::None => 64,
            QuantScheme::Q8 { group } => group,
            QuantScheme::L(format) | QuantScheme::M(format) => format.group,
        };
        Self { backend, checkpoint, prefix: prefix.into(), group }
    }

    /// The same files under `prefix` + `name` + ".".
    pub fn under(&self, name: &str) -> Self {
        Self { prefix: format!("{}{name}.", self.prefix), ..*self }
    }

    /// Whether the tensor exists.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.has(&self.name(name))
    }

    /// The device.
    pub fn backend(&self) -> &'a Backend {
        self.backend
    }

    /// `NAME.weight: [outputs, inputs]`, any storage.
    pub fn matrix(&self, name: &str, outputs: usize, inputs: usize) -> Result<Matrix, FastError> {
        self.reordered(name, outputs, inputs, |row| row)
    }

    /// As [`matrix`](Self::matrix), row `i` of the result being row `order(i)` of the file.
    pub fn reordered(
        &self,
        name: &str,
        outputs: usize,
        inputs: usize,
        order: impl Fn(usize) -> usize,
    ) -> Result<Matrix, FastError> {
        let name = self.name(&format!("{name}.weight"));
        let tensor = self.checkpoint.tensor(&name)?;
        tensor.expect_shape(&[outputs, inputs])?;
        let shape = (outputs, inputs);
        let packed = match tensor.elements()? {
            Elements::F32(w) => Matrix::from_f32(&rows(&w, shape, order), outputs, inputs),
            Elements::F16(w) => Matrix::from_f16(&rows(&w, shape, order), outputs, inputs),
            Elements::Bf16(w) => Matrix::from_bf16(&rows(&w, shape, order), outputs, inputs),
            Elements::I8(codes) => {
                let scales = self.scales(&name, outputs, inputs)?;
                let scales = rows(&scales, (outputs, inputs.div_ceil(self.group)), &order);
                Matrix::from_q8(&rows(&codes, shape, order), &scales, shape, self.group)
            }
        };
        packed.map_err(|e| tensor.error(e.to_string(), "a matrix that can be packed".into()))
    }

    /// Several matrices of one input, stacked.
    pub fn stacked(&self, parts: &[(&str, usize)], inputs: usize) -> Result<Matrix, FastError> {
        let parts = parts.iter().map(|&(name, outputs)| self.matrix(name, outputs, inputs)).collect::<Result<Vec<_>, _>>()?;
        self.stack(parts)
    }

    /// Stacks matrices that share an input.
    pub fn stack(&self, parts: Vec<Matrix>) -> Result<Matrix, FastError> {
        Matrix::concat_rows(parts).map_err(|e| FastError::Format {
            file: self.prefix.clone(),
            found: e.to_string(),
            expected: "projections of equal inputs".into(),
        })
    }

    /// The numbers of a tensor of this shape, row-major.
    pub fn numbers(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, FastError> {
        let name = self.name(name);
        let tensor = self.checkpoint.tensor(&name)?;
        tensor.expect_shape(shape)?;
        tensor.floats()
    }

    /// `NAME: [len]`.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, FastError> {
        self.numbers(name, &[len])
    }

    /// Biases, stacked in order; `None` when none of them exists.
    pub fn biases(&self, parts: &[(&str, usize)]) -> Result<Option<Buffer>, FastError> {
        if !parts.iter().any(|(name, _)| self.has(&format!("{name}.bias"))) {
            return Ok(None);
        }
        let mut all = Vec::new();
        for (name, len) in parts {
            all.extend(self.vector(&format!("{name}.bias"), *len)?);
        }
        Ok(Some(self.backend.upload(&all)))
    }

    /// `NAME.weight: [dim]` of an RMSNorm; `plus_one` for weights stored around 0.
    pub fn norm(&self, name: &str, dim: usize, eps: f64, plus_one: bool) -> Result<Norm, FastError> {
        let mut scale = self.vector(&format!("{name}.weight"), dim)?;
        if plus_one {
            scale.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(Norm::new(self.backend, &scale, eps))
    }

    fn scales(&self, name: &str, outputs: usize, inputs: usize) -> Result<Vec<bf16>, FastError> {
        let name = format!("{name}.scale");
        let tensor = self.checkpoint.tensor(&name)?;
        tensor.expect_shape(&[outputs, inputs.div_ceil(self.group)])?;
        match tensor.elements()? {
            Elements::Bf16(scales) => Ok(scales),
            _ => Err(tensor.error("another number type".into(), "BF16 scales".into())),
        }
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

fn rows<T: Copy>(elements: &[T], (outputs, inputs): (usize, usize), order: impl Fn(usize) -> usize) -> Vec<T> {
    (0..outputs).flat_map(|row| elements[order(row) * inputs..][..inputs].iter().copied()).collect()
}
