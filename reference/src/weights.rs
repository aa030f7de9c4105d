//! Tensors of a checkpoint folder as f64 arrays: BF16, F16, F32, F64, and straw's codes (docs/formats.md): 8-bit codes, whose
//! weight is scale times code, and 4-bit codes with a zero point; both with or without the block Hadamard transform, which
//! is undone here. Every value is checked for being finite. Knows nothing of models; names and shapes come from who asks.

use crate::{
    error::ReferenceError,
    shard::{Entry, Shard, shard_names},
};
use half::{bf16, f16};
use ndarray::{Array, Array1, Array2, ArrayViewMut1, Axis, Dimension, IntoDimension, concatenate};
use serde_json::Value;
use std::{collections::BTreeMap, fs, ops::Range, path::Path};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Inputs that share a scale where `config.json` does not say.
const GROUP: usize = 64;
/// Inputs of a block of the Hadamard transform.
const BLOCK: usize = 32;

/// All weight files of one folder.
pub struct Checkpoint {
    folder: String,
    shards: Vec<Shard>,
    shard_of: BTreeMap<String, usize>,
    /// Inputs that share a scale.
    group: usize,
}

impl Checkpoint {
    /// Opens the files of a folder: those its index names, or `model.safetensors`. `config.json` says how many inputs share
    /// a scale.
    pub fn open(folder: &Path) -> Result<Self, ReferenceError> {
        let index = folder.join(INDEX);
        let names = if index.exists() { shard_names(&index)? } else { vec![SINGLE.to_owned()] };
        let mut checkpoint = Self::of_files(folder, &names)?;
        if let Some(group) = group_size(&folder.join("config.json"))? {
            checkpoint.group = group;
        }
        Ok(checkpoint)
    }

    /// Opens files of a folder by name.
    pub(crate) fn of_files(folder: &Path, names: &[String]) -> Result<Self, ReferenceError> {
        let shards = names.iter().map(|name| Shard::open(&folder.join(name))).collect::<Result<Vec<_>, _>>()?;
        let names = shards.iter().enumerate().flat_map(|(i, s)| s.tensors.keys().map(move |n| (n.clone(), i)));
        Ok(Self { folder: folder.display().to_string(), shard_of: names.collect(), shards, group: GROUP })
    }

    /// Whether a tensor is there.
    pub fn contains(&self, name: &str) -> bool {
        self.shard_of.contains_key(name)
    }

    /// A vector of known length.
    pub fn vector(&self, name: &str, len: usize) -> Result<Array1<f64>, ReferenceError> {
        self.tensor(name, [len])
    }

    /// A matrix `[out, input]`, codes dequantised and the transform undone.
    pub fn matrix(&self, name: &str, out: usize, input: usize) -> Result<Array2<f64>, ReferenceError> {
        self.slice(name, (out, input), 0..out)
    }

    /// Some rows of a matrix `[out, input]`, in the order asked for. Reads no others.
    pub fn matrix_rows(&self, name: &str, shape: (usize, usize), rows: &[u32]) -> Result<Array2<f64>, ReferenceError> {
        let row = |&row: &u32| self.slice(name, shape, row as usize..row as usize + 1);
        let rows = rows.iter().map(row).collect::<Result<Vec<_>, _>>()?;
        let views: Vec<_> = rows.iter().map(|r| r.view()).collect();
        Ok(concatenate(Axis(0), &views).expect("rows of one width"))
    }

    /// Rows of a matrix.
    fn slice(&self, name: &str, (out, input): (usize, usize), rows: Range<usize>) -> Result<Array2<f64>, ReferenceError> {
        let dtype = self.find(name)?.1.dtype.as_str();
        let groups = input.div_ceil(self.group);
        let mut weights = match dtype {
            "I8" => {
                let codes = self.values(name, &[out, input], rows.clone())?;
                if let Some(at) = codes.iter().position(|&code| code == -128.0) {
                    let found = format!("has code -128 at [{}, {}]", rows.start + at / input, at % input);
                    return Err(ReferenceError::tensor(&self.find(name)?.0.file, name, found, "-127 to 127"));
                }
                codes
            }
            "U8" => {
                let codes = unpack(&self.bytes(name, &[out, input.div_ceil(2)], rows.clone())?, input);
                let zero_name = format!("{name}.zero");
                let (shard, entry) = self.find(&zero_name)?;
                if entry.dtype != "U8" {
                    let found = format!("has type {}", entry.dtype);
                    return Err(ReferenceError::tensor(&shard.file, &zero_name, found, "U8, two zero points a byte"));
                }
                let zeros = unpack(&self.bytes(&zero_name, &[out, groups.div_ceil(2)], rows.clone())?, groups);
                let zero = |i: usize| zeros[i / input * groups + i % input / self.group];
                codes.iter().enumerate().map(|(i, code)| code - zero(i)).collect()
            }
            _ => {
                let values = self.values(name, &[out, input], rows.clone())?;
                return Ok(Array2::from_shape_vec((rows.len(), input), values).expect("as many numbers as the shape says"));
            }
        };
        let scales = self.values(&format!("{name}.scale"), &[out, groups], rows.clone())?;
        for (i, weight) in weights.iter_mut().enumerate() {
            *weight *= scales[i / input * groups + i % input / self.group];
        }
        let mut weights = Array2::from_shape_vec((rows.len(), input), weights).expect("as many numbers as the shape says");
        let signs_name = format!("hadamard.signs.{input}");
        if self.contains(&signs_name) {
            let signs: Array1<f64> = self.vector(&signs_name, input)?;
            if let Some(at) = signs.iter().position(|s| s.abs() != 1.0) {
                let found = format!("holds {} at element {at}", signs[at]);
                return Err(ReferenceError::tensor(&self.find(&signs_name)?.0.file, &signs_name, found, "1 or -1"));
            }
            weights.outer_iter_mut().for_each(|row| unrotate(row, &signs));
        }
        Ok(weights)
    }

    /// A tensor of known shape, every value finite. Codes come without their scales.
    pub fn tensor<S: IntoDimension>(&self, name: &str, shape: S) -> Result<Array<f64, S::Dim>, ReferenceError> {
        let shape = shape.into_dimension();
        let values = self.values(name, shape.slice(), 0..shape.slice().first().copied().unwrap_or(1))?;
        Ok(Array::from_shape_vec(shape, values).expect("the header's shape fits its bytes"))
    }

    /// Numbers of rows of a tensor, every one finite.
    fn values(&self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Vec<f64>, ReferenceError> {
        let bytes = self.bytes(name, shape, rows.clone())?;
        let (shard, entry) = self.find(name)?;
        let Some(values) = decode(&entry.dtype, &bytes) else {
            let found = format!("has type {}", entry.dtype);
            return Err(ReferenceError::tensor(&shard.file, name, found, "BF16, F16, F32, F64 or codes"));
        };
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            let first = rows.start * shape.iter().skip(1).product::<usize>();
            let found = format!("holds {} at element {}", values[index], first + index);
            return Err(ReferenceError::tensor(&shard.file, name, found, "finite values"));
        }
        Ok(values)
    }

    /// Bytes of rows of a tensor of known shape.
    fn bytes(&self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Vec<u8>, ReferenceError> {
        let (shard, entry) = self.find(name)?;
        if entry.shape != shape {
            let found = format!("has shape {:?}", entry.shape);
            return Err(ReferenceError::tensor(&shard.file, name, found, format!("{shape:?}")));
        }
        let row = entry.len() / shape.first().copied().unwrap_or(1).max(1);
        shard.read(entry, rows.start * row..rows.end * row)
    }

    fn find(&self, name: &str) -> Result<(&Shard, &Entry), ReferenceError> {
        let shard = self.shard_of.get(name).map(|&i| &self.shards[i]);
        shard
            .and_then(|shard| Some((shard, shard.tensors.get(name)?)))
            .ok_or_else(|| ReferenceError::tensor(&self.folder, name, "is missing", "it in one of the safetensors files"))
    }
}

/// `quantization_config.group_size` of a folder's configuration, where there are both.
fn group_size(config: &Path) -> Result<Option<usize>, ReferenceError> {
    let Ok(text) = fs::read_to_string(config) else { return Ok(None) };
    let wrong = |found: String, expected: &str| ReferenceError::file(&config.display().to_string(), found, expected);
    let json: Value = serde_json::from_str(&text).map_err(|e| wrong(e.to_string(), "a JSON object"))?;
    let Some(group) = json.pointer("/quantization_config/group_size") else { return Ok(None) };
    let size = group.as_u64().filter(|&g| (1..1 << 31).contains(&g));
    size.map(|g| Some(g as usize)).ok_or_else(|| wrong(format!("group_size {group}"), "a whole number of at least 1"))
}

/// Rows of `len` 4-bit codes, two a byte, the first in the low half; an odd row ends with an unused half.
fn unpack(bytes: &[u8], len: usize) -> Vec<f64> {
    let row = |bytes: &[u8]| (0..len).map(|i| f64::from(bytes[i / 2] >> (4 * (i % 2)) & 15)).collect::<Vec<_>>();
    bytes.chunks_exact(len.div_ceil(2)).flat_map(row).collect()
}

/// `w <- (w' H) D` over each full block: with `H H = 32` the inverse of `w' = (w D) H / 32`. `H` is Sylvester's matrix, whose
/// entry is -1 to the number of ones that row and column share in binary.
fn unrotate(mut row: ArrayViewMut1<f64>, signs: &Array1<f64>) {
    for first in (0..row.len() / BLOCK).map(|b| b * BLOCK) {
        let stored: [f64; BLOCK] = std::array::from_fn(|i| row[first + i]);
        for i in 0..BLOCK {
            let term = |j: usize| if (i & j).count_ones().is_multiple_of(2) { stored[j] } else { -stored[j] };
            row[first + i] = signs[first + i] * (0..BLOCK).map(term).sum::<f64>();
        }
    }
}

/// Values of the number types read here; `None` for any other.
fn decode(dtype: &str, bytes: &[u8]) -> Option<Vec<f64>> {
    Some(match dtype {
        "I8" => bytes.iter().map(|&b| f64::from(b as i8)).collect(),
        "BF16" => words(bytes).map(|b| bf16::from_le_bytes(b).to_f64()).collect(),
        "F16" => words(bytes).map(|b| f16::from_le_bytes(b).to_f64()).collect(),
        "F32" => words(bytes).map(|b| f64::from(f32::from_le_bytes(b))).collect(),
        "F64" => words(bytes).map(f64::from_le_bytes).collect(),
        _ => return None,
    })
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes.chunks_exact(N).map(|chunk| chunk.try_into().expect("chunks have N bytes"))
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
