//! From named tensors to what the backend multiplies with: matrices packed once at load, fused where they share an input.
//! Knows straw's storages of codes (q8, L, M: docs/formats.md); nothing of what a matrix is for.

use crate::FastError;
use crate::backend::{Backend, Buffer, Matrix, Norm};
use crate::checkpoint::{Checkpoint, Elements, Tensor};
use crate::kernels::{PackError, Signs};
use half::bf16;
use specdec::{Activations, CodeFormat, QuantScheme};

/// A checkpoint under one name prefix.
pub(crate) struct Weights<'a> {
    backend: &'a Backend,
    checkpoint: &'a Checkpoint,
    prefix: String,
    quantisation: QuantScheme,
}

impl<'a> Weights<'a> {
    /// `prefix` is put before every name. `quantisation` says what codes mean; a tensor says itself whether it has codes.
    pub fn new(backend: &'a Backend, checkpoint: &'a Checkpoint, prefix: &str, quantisation: QuantScheme) -> Self {
        Self { backend, checkpoint, prefix: prefix.into(), quantisation }
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
        let shape = (outputs, inputs);
        let elements = tensor.elements()?;
        let halves = matches!(elements, Elements::U8(_));
        tensor.expect_shape(&[outputs, if halves { inputs.div_ceil(2) } else { inputs }])?;
        let packed = match elements {
            Elements::F32(w) => Matrix::from_f32(&rows(&w, shape, order), outputs, inputs),
            Elements::F16(w) => Matrix::from_f16(&rows(&w, shape, order), outputs, inputs),
            Elements::Bf16(w) => Matrix::from_bf16(&rows(&w, shape, order), outputs, inputs),
            Elements::I8(codes) => {
                let group = match self.quantisation {
                    QuantScheme::None => 64,
                    QuantScheme::Q8 { group } => group,
                    QuantScheme::L(format) | QuantScheme::M(format) => format.group,
                };
                let scales = self.scales(&name, shape, group)?;
                let (codes, scales) = (rows(&codes, shape, &order), rows(&scales, (outputs, inputs.div_ceil(group)), &order));
                match self.quantisation.codes() {
                    Some(format) => self.eight(&codes, &scales, shape, format)?,
                    None => Matrix::from_q8(&codes, &scales, shape, group),
                }
            }
            Elements::U8(codes) => {
                let Some(format) = self.quantisation.codes() else {
                    let expected = "a quantization_config of scheme m or l beside 4-bit codes";
                    return Err(tensor.error("number type U8".into(), expected.into()));
                };
                let groups = inputs.div_ceil(format.group);
                let scales = rows(&self.scales(&name, shape, format.group)?, (outputs, groups), &order);
                let zeros = rows(&self.zeros(&name, outputs, groups)?, (outputs, groups.div_ceil(2)), &order);
                let codes = rows(&codes, (outputs, inputs.div_ceil(2)), &order);
                self.four((&codes, &scales, &zeros), shape, format)?
            }
        };
        packed.map_err(|e| tensor.error(e.to_string(), "a matrix that can be packed".into()))
    }

    /// L; with f32 activations the weights that the codes stand for.
    fn eight(
        &self,
        codes: &[i8],
        scales: &[bf16],
        shape: (usize, usize),
        format: CodeFormat,
    ) -> Result<Result<Matrix, PackError>, FastError> {
        let signs = self.signs(shape.1, format)?;
        Ok(match (format.activations, &signs) {
            (Activations::Int8, signs) => Matrix::from_l(codes, scales, shape, format.group, signs.as_ref()),
            (Activations::F32, None) => Matrix::from_q8(codes, scales, shape, format.group),
            (Activations::F32, Some(signs)) => {
                Matrix::from_q8(codes, scales, shape, format.group).and_then(|matrix| matrix.rotated(signs))
            }
        })
    }

    /// As `eight` for M.
    fn four(
        &self,
        (codes, scales, zeros): (&[u8], &[bf16], &[u8]),
        shape: (usize, usize),
        format: CodeFormat,
    ) -> Result<Result<Matrix, PackError>, FastError> {
        let signs = self.signs(shape.1, format)?;
        if format.activations == Activations::Int8 {
            return Ok(Matrix::from_m((codes, scales, zeros), shape, format.group, signs.as_ref()));
        }
        let (outputs, inputs) = shape;
        let groups = inputs.div_ceil(format.group);
        let half =
            |bytes: &[u8], row: usize, i: usize, n: usize| f32::from(bytes[row * n.div_ceil(2) + i / 2] >> (4 * (i % 2)) & 15);
        let weight = |row: usize, k: usize| {
            let g = k / format.group;
            scales[row * groups + g].to_f32() * (half(codes, row, k, inputs) - half(zeros, row, g, groups))
        };
        let weights: Vec<f32> =
            (0..outputs).flat_map(|row| (0..inputs).map(move |k| (row, k))).map(|(row, k)| weight(row, k)).collect();
        let matrix = Matrix::from_f32(&weights, outputs, inputs);
        Ok(match &signs {
            Some(signs) => matrix.and_then(|matrix| matrix.rotated(signs)),
            None => matrix,
        })
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

    fn scales(&self, name: &str, (outputs, inputs): (usize, usize), group: usize) -> Result<Vec<bf16>, FastError> {
        let name = format!("{name}.scale");
        let tensor = self.checkpoint.tensor(&name)?;
        tensor.expect_shape(&[outputs, inputs.div_ceil(group)])?;
        match tensor.elements()? {
            Elements::Bf16(scales) => Ok(scales),
            _ => Err(tensor.error("another number type".into(), "BF16 scales".into())),
        }
    }

    fn zeros(&self, name: &str, outputs: usize, groups: usize) -> Result<Vec<u8>, FastError> {
        let name = format!("{name}.zero");
        let tensor = self.checkpoint.tensor(&name)?;
        tensor.expect_shape(&[outputs, groups.div_ceil(2)])?;
        match tensor.elements()? {
            Elements::U8(zeros) => Ok(zeros),
            _ => Err(tensor.error("another number type".into(), "U8 zero points, two a byte".into())),
        }
    }

    /// The transform of inputs of this length: the stored signs, whatever rule made them.
    fn signs(&self, inputs: usize, format: CodeFormat) -> Result<Option<Signs>, FastError> {
        if !format.hadamard {
            return Ok(None);
        }
        let name = format!("hadamard.signs.{inputs}");
        let tensor: Tensor = self.checkpoint.tensor(&name)?;
        tensor.expect_shape(&[inputs])?;
        let signs = match tensor.elements()? {
            Elements::I8(signs) => Signs::new(&signs),
            _ => None,
        };
        signs
            .map(Some)
            .ok_or_else(|| tensor.error("another number type or other numbers".into(), "I8 signs, each 1 or -1".into()))
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

fn rows<T: Copy>(elements: &[T], (outputs, inputs): (usize, usize), order: impl Fn(usize) -> usize) -> Vec<T> {
    (0..outputs).flat_map(|row| elements[order(row) * inputs..][..inputs].iter().copied()).collect()
}
