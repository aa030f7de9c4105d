//! Tensors of a checkpoint folder by name: one safetensors file, or the shards that `model.safetensors.index.json` names.
//! Headers are validated against the file's true size before candle parses them, so a forged header costs one sentence and
//! no memory. Knows names, shapes and number types; nothing of models.

use crate::FastError;
use candle_core::safetensors::BufferedSafetensors;
use half::{bf16, f16};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Largest header that is believed: real ones stay below 10 MB.
const MAX_HEADER: u64 = 100 << 20;

/// The files of one folder.
pub(crate) struct Checkpoint {
    folder: PathBuf,
    shards: Vec<Shard>,
    shard_of: HashMap<String, usize>,
}

struct Shard {
    path: PathBuf,
    tensors: BufferedSafetensors,
}

/// One tensor, checked to lie inside its file.
pub(crate) struct Tensor<'a> {
    file: &'a Path,
    name: &'a str,
    /// Dimensions, slowest first.
    pub shape: Vec<usize>,
    dtype: Dtype,
    bytes: &'a [u8],
}

/// Number types that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    I8,
    U8,
}

/// Elements in the type they are stored in.
pub(crate) enum Elements {
    /// 32-bit floats (64-bit ones are rounded to them).
    F32(Vec<f32>),
    /// IEEE half precision.
    F16(Vec<f16>),
    /// Brain floats.
    Bf16(Vec<bf16>),
    /// 8-bit codes.
    I8(Vec<i8>),
    /// Bytes of two 4-bit codes.
    U8(Vec<u8>),
}

impl Checkpoint {
    /// Opens `model.safetensors`, or the shards of `model.safetensors.index.json`, in `folder`.
    pub fn open(folder: &Path) -> Result<Self, FastError> {
        let index = folder.join("model.safetensors.index.json");
        let files = if index.exists() { shard_files(&index)? } else { vec!["model.safetensors".to_owned()] };
        let mut checkpoint = Self { folder: folder.into(), shards: vec![], shard_of: HashMap::new() };
        for (i, name) in files.iter().enumerate() {
            let path = folder.join(name);
            let bytes = fs::read(&path).map_err(|e| read_error(&path, &e))?;
            for tensor in check_header(&path, &bytes)? {
                checkpoint.shard_of.insert(tensor, i);
            }
            let tensors = BufferedSafetensors::new(bytes).map_err(|e| format_error(&path, e, "a safetensors file"))?;
            checkpoint.shards.push(Shard { path, tensors });
        }
        Ok(checkpoint)
    }

    /// Whether some file has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.shard_of.contains_key(name)
    }

    /// The tensor. Errors: missing, or of a type that is not read here.
    pub fn tensor<'a>(&'a self, name: &'a str) -> Result<Tensor<'a>, FastError> {
        let missing = || FastError::Missing { file: self.folder.display().to_string(), tensor: name.into() };
        let shard = &self.shards[*self.shard_of.get(name).ok_or_else(missing)?];
        let view = shard.tensors.get(name).map_err(|_| missing())?;
        let dtype = match format!("{:?}", view.dtype()).as_str() {
            "F64" => Dtype::F64,
            "F32" => Dtype::F32,
            "F16" => Dtype::F16,
            "BF16" => Dtype::Bf16,
            "I8" => Dtype::I8,
            "U8" => Dtype::U8,
            other => {
                return Err(FastError::Tensor {
                    file: shard.path.display().to_string(),
                    tensor: name.into(),
                    found: format!("number type {other}"),
                    expected: "F32, BF16, F16, F64, I8 or U8".into(),
                });
            }
        };
        Ok(Tensor { file: &shard.path, name, shape: view.shape().to_vec(), dtype, bytes: view.data() })
    }
}

impl Tensor<'_> {
    /// Refuses any other shape.
    pub fn expect_shape(&self, expected: &[usize]) -> Result<(), FastError> {
        if self.shape == expected {
            return Ok(());
        }
        Err(self.error(format!("shape {:?}", self.shape), format!("{expected:?}")))
    }

    /// The elements as stored. Errors: NaN or infinity, with its place; a code of -128.
    pub fn elements(&self) -> Result<Elements, FastError> {
        let elements = match self.dtype {
            Dtype::F64 => Elements::F32(self.bytes.chunks_exact(8).map(|b| f64::from_le_bytes(array(b)) as f32).collect()),
            Dtype::F32 => Elements::F32(self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(array(b))).collect()),
            Dtype::F16 => Elements::F16(self.bytes.chunks_exact(2).map(|b| f16::from_le_bytes(array(b))).collect()),
            Dtype::Bf16 => Elements::Bf16(self.bytes.chunks_exact(2).map(|b| bf16::from_le_bytes(array(b))).collect()),
            Dtype::I8 => Elements::I8(self.bytes.iter().map(|&b| b as i8).collect()),
            Dtype::U8 => Elements::U8(self.bytes.to_vec()),
        };
        let bad = match &elements {
            Elements::F32(v) => v.iter().position(|x| !x.is_finite()).map(|i| (i, v[i])),
            Elements::F16(v) => v.iter().position(|x| !x.is_finite()).map(|i| (i, v[i].to_f32())),
            Elements::Bf16(v) => v.iter().position(|x| !x.is_finite()).map(|i| (i, v[i].to_f32())),
            Elements::I8(v) => v.iter().position(|&x| x == i8::MIN).map(|i| (i, -128.0)),
            Elements::U8(_) => None,
        };
        match bad {
            Some((i, -128.0)) => Err(self.error(format!("code -128 at element {i}"), "codes from -127 to 127".into())),
            Some((i, x)) => Err(self.error(format!("{x} at element {i}"), "finite numbers only".into())),
            None => Ok(elements),
        }
    }

    /// The elements as f32, exactly (64-bit ones rounded). Errors: as [`elements`](Self::elements), and codes.
    pub fn floats(&self) -> Result<Vec<f32>, FastError> {
        match self.elements()? {
            Elements::F32(v) => Ok(v),
            Elements::F16(v) => Ok(v.into_iter().map(f16::to_f32).collect()),
            Elements::Bf16(v) => Ok(v.into_iter().map(bf16::to_f32).collect()),
            Elements::I8(_) => Err(self.error("number type I8".into(), "a float type here".into())),
            Elements::U8(_) => Err(self.error("number type U8".into(), "a float type here".into())),
        }
    }

    /// The error that names this tensor.
    pub fn error(&self, found: String, expected: String) -> FastError {
        FastError::Tensor { file: self.file.display().to_string(), tensor: self.name.into(), found, expected }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| bytes[i])
}

/// File names of an index, each once, in rising order. Only plain names: an index cannot point outside its folder.
fn shard_files(index: &Path) -> Result<Vec<String>, FastError> {
    let text = fs::read_to_string(index).map_err(|e| read_error(index, &e))?;
    let json: Value = serde_json::from_str(&text).map_err(|e| format_error(index, e, "a JSON index of shards"))?;
    let map = json.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| format_error(index, "no weight_map", "an object from tensor to file"))?;
    let mut files = Vec::new();
    for (tensor, file) in map {
        let name = file.as_str().filter(|f| !f.is_empty() && !f.contains(['/', '\\']) && *f != "..");
        let name = name.ok_or_else(|| format_error(index, format!("file {file} for {tensor}"), "a file name"))?;
        files.push(name.to_owned());
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// Checks a safetensors header against the bytes that are really there and returns the names of its tensors.
fn check_header(path: &Path, bytes: &[u8]) -> Result<Vec<String>, FastError> {
    let fail = |found: String, expected: &str| format_error(path, found, expected);
    let Some(length) = bytes.get(..8) else {
        return Err(fail(format!("{} bytes", bytes.len()), "a safetensors file of at least 8 bytes"));
    };
    let length = u64::from_le_bytes(array(length));
    let room = bytes.len() as u64 - 8;
    if length == 0 || length > room.min(MAX_HEADER) {
        return Err(fail(format!("a header of {length} bytes"), &format!("1 to {} bytes", room.min(MAX_HEADER))));
    }
    let (header, data) = bytes[8..].split_at(length as usize);
    let header: Map<String, Value> = serde_json::from_slice(header).map_err(|e| fail(e.to_string(), "a JSON header"))?;
    let mut names = Vec::new();
    for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let bad = |found: String, expected: String| FastError::Tensor {
            file: path.display().to_string(),
            tensor: name.clone(),
            found,
            expected,
        };
        let text = entry.get("dtype").and_then(Value::as_str).unwrap_or("none");
        let bits = match text {
            "F64" | "I64" | "U64" => 64,
            "F32" | "I32" | "U32" => 32,
            "F16" | "BF16" | "I16" | "U16" => 16,
            "I8" | "U8" | "BOOL" | "F8_E4M3" | "F8_E5M2" => 8u64,
            _ => return Err(bad(format!("number type {text}"), "one that safetensors defines".into())),
        };
        let numbers = |key: &str| -> Option<Vec<u64>> { entry.get(key)?.as_array()?.iter().map(Value::as_u64).collect() };
        let shape = numbers("shape").ok_or_else(|| bad("no shape".into(), "a list of sizes".into()))?;
        let size = shape.iter().try_fold(bits / 8, |size, &dim| size.checked_mul(dim));
        let size = size.ok_or_else(|| bad(format!("shape {shape:?}"), "fewer than 2^64 bytes".into()))?;
        let offsets = numbers("data_offsets").unwrap_or_default();
        let inside = matches!(offsets[..], [from, to] if from <= to && to <= data.len() as u64 && to - from == size);
        if !inside {
            let expected = format!("{size} bytes for shape {shape:?} of {text} inside {} bytes of data", data.len());
            return Err(bad(format!("data offsets {offsets:?}"), expected));
        }
        names.push(name.clone());
    }
    Ok(names)
}

fn read_error(path: &Path, error: &std::io::Error) -> FastError {
    FastError::Read { file: path.display().to_string(), found: error.to_string() }
}

fn format_error(path: &Path, found: impl ToString, expected: &str) -> FastError {
    FastError::Format { file: path.display().to_string(), found: found.to_string(), expected: expected.into() }
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
