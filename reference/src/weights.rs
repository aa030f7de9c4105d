//! Tensors of a checkpoint folder as f64 arrays: safetensors, one file or sharded through its index; BF16, F16, F32, F64,
//! and straw's 8-bit codes, whose weight is exactly scale times code.
//! A file is judged before it is believed: every length and offset against the bytes that are there, every value for
//! being finite. Knows nothing of models; names and shapes come from who asks.

use crate::error::ReferenceError;
use half::{bf16, f16};
use ndarray::{Array, Array1, Array2, Dimension, IntoDimension};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fs, path::Path};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Inputs that share a scale in straw's 8-bit format.
const Q8_GROUP: usize = 64;

/// All weight files of one folder.
pub struct Checkpoint {
    folder: String,
    shards: Vec<Shard>,
    shard_of: BTreeMap<String, usize>,
}

/// One safetensors file: header length (u64, little-endian), JSON header, data.
struct Shard {
    file: String,
    bytes: Vec<u8>,
    data: usize,
    tensors: BTreeMap<String, Entry>,
}

struct Entry {
    dtype: String,
    shape: Vec<usize>,
    begin: usize,
    end: usize,
}

impl Checkpoint {
    /// Reads the files of a folder: those its index names, or `model.safetensors`.
    pub fn open(folder: &Path) -> Result<Self, ReferenceError> {
        let index = folder.join(INDEX);
        let names = if index.exists() { shard_names(&index)? } else { vec![SINGLE.to_owned()] };
        Self::of_files(folder, &names)
    }

    /// Reads files of a folder by name.
    pub(crate) fn of_files(folder: &Path, names: &[String]) -> Result<Self, ReferenceError> {
        let shards = names.iter().map(|name| Shard::open(&folder.join(name))).collect::<Result<Vec<_>, _>>()?;
        let names = shards.iter().enumerate().flat_map(|(i, s)| s.tensors.keys().map(move |n| (n.clone(), i)));
        Ok(Self { folder: folder.display().to_string(), shard_of: names.collect(), shards })
    }

    /// Whether a tensor is there.
    pub fn contains(&self, name: &str) -> bool {
        self.shard_of.contains_key(name)
    }

    /// A vector of known length.
    pub fn vector(&self, name: &str, len: usize) -> Result<Array1<f64>, ReferenceError> {
        self.tensor(name, [len])
    }

    /// A matrix `[out, input]`; 8-bit codes are multiplied by their scales.
    pub fn matrix(&self, name: &str, out: usize, input: usize) -> Result<Array2<f64>, ReferenceError> {
        let codes: Array2<f64> = self.tensor(name, [out, input])?;
        let (shard, entry) = self.find(name)?;
        if entry.dtype != "I8" {
            return Ok(codes);
        }
        if let Some(((row, column), _)) = codes.indexed_iter().find(|(_, code)| **code == -128.0) {
            return Err(ReferenceError::tensor(&shard.file, name, format!("has code -128 at [{row}, {column}]"), "-127 to 127"));
        }
        let scales: Array2<f64> = self.tensor(&format!("{name}.scale"), [out, input.div_ceil(Q8_GROUP)])?;
        Ok(Array2::from_shape_fn((out, input), |(o, i)| scales[[o, i / Q8_GROUP]] * codes[[o, i]]))
    }

    /// A tensor of known shape, every value finite. Codes come without their scales.
    pub fn tensor<S: IntoDimension>(&self, name: &str, shape: S) -> Result<Array<f64, S::Dim>, ReferenceError> {
        let shape = shape.into_dimension();
        let (shard, entry) = self.find(name)?;
        if entry.shape != shape.slice() {
            let found = format!("has shape {:?}", entry.shape);
            return Err(ReferenceError::tensor(&shard.file, name, found, format!("{:?}", shape.slice())));
        }
        let bytes = &shard.bytes[shard.data + entry.begin..shard.data + entry.end];
        let Some(values) = decode(&entry.dtype, bytes) else {
            let found = format!("has type {}", entry.dtype);
            return Err(ReferenceError::tensor(&shard.file, name, found, "BF16, F16, F32, F64 or I8 codes"));
        };
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            let found = format!("holds {} at element {index}", values[index]);
            return Err(ReferenceError::tensor(&shard.file, name, found, "finite values"));
        }
        Ok(Array::from_shape_vec(shape, values).expect("the header's shape fits its bytes"))
    }

    fn find(&self, name: &str) -> Result<(&Shard, &Entry), ReferenceError> {
        let shard = self.shard_of.get(name).map(|&i| &self.shards[i]);
        shard
            .and_then(|shard| Some((shard, shard.tensors.get(name)?)))
            .ok_or_else(|| ReferenceError::tensor(&self.folder, name, "is missing", "it in one of the safetensors files"))
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

/// Bytes of an element, for every type the format names; `None` for an unknown one.
fn width(dtype: &str) -> Option<usize> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 1,
        "I16" | "U16" | "F16" | "BF16" => 2,
        "I32" | "U32" | "F32" => 4,
        "I64" | "U64" | "F64" => 8,
        _ => return None,
    })
}

/// File names of the shards, each once.
fn shard_names(index: &Path) -> Result<Vec<String>, ReferenceError> {
    let file = index.display().to_string();
    let text = fs::read_to_string(index).map_err(|e| ReferenceError::Read { file: file.clone(), reason: e.to_string() })?;
    let wrong = |found: &str| ReferenceError::file(&file, found, "a JSON object whose weight_map names a file per tensor");
    let json: Value = serde_json::from_str(&text).map_err(|e| wrong(&e.to_string()))?;
    let map = json.get("weight_map").and_then(Value::as_object).ok_or_else(|| wrong("no weight_map"))?;
    let mut names = Vec::new();
    for (tensor, name) in map {
        let name = name.as_str().ok_or_else(|| wrong(&format!("tensor {tensor} names no file")))?;
        if name.contains(['/', '\\']) {
            return Err(wrong(&format!("tensor {tensor} names {name:?}, a file outside the folder")));
        }
        names.push(name.to_owned());
    }
    names.sort();
    names.dedup();
    if names.is_empty() { Err(wrong("an empty weight_map")) } else { Ok(names) }
}

impl Shard {
    fn open(path: &Path) -> Result<Self, ReferenceError> {
        let file = path.display().to_string();
        let bytes = fs::read(path).map_err(|e| ReferenceError::Read { file: file.clone(), reason: e.to_string() })?;
        Self::parse(file, bytes)
    }

    fn parse(file: String, bytes: Vec<u8>) -> Result<Self, ReferenceError> {
        let Some(length) = bytes.first_chunk::<8>() else {
            let found = format!("{} bytes", bytes.len());
            return Err(ReferenceError::file(&file, found, "at least the 8 bytes of a safetensors header length"));
        };
        let length = u64::from_le_bytes(*length);
        let room = bytes.len() - 8;
        let Some(header_len) = usize::try_from(length).ok().filter(|&n| n > 0 && n <= room) else {
            return Err(ReferenceError::file(
                &file,
                format!("a header of {length} bytes"),
                format!("1 to {room} bytes of header"),
            ));
        };
        let data = 8 + header_len;
        let header: Value = serde_json::from_slice(&bytes[8..data])
            .map_err(|e| ReferenceError::file(&file, format!("a header that is no JSON ({e})"), "a safetensors header"))?;
        let Value::Object(header) = header else {
            return Err(ReferenceError::file(&file, "a header that is no JSON object", "a safetensors header"));
        };
        let tensors = header
            .iter()
            .filter(|(name, _)| name.as_str() != "__metadata__")
            .map(|(name, value)| Ok((name.clone(), Entry::read(&file, name, value, bytes.len() - data)?)))
            .collect::<Result<_, ReferenceError>>()?;
        Ok(Self { file, bytes, data, tensors })
    }
}

impl Entry {
    fn read(file: &str, name: &str, value: &Value, available: usize) -> Result<Self, ReferenceError> {
        let wrong = |found: String, expected: String| ReferenceError::tensor(file, name, found, expected);
        let fields =
            value.as_object().ok_or_else(|| wrong("is no object in the header".into(), "dtype, shape, data_offsets".into()))?;
        let dtype = fields.get("dtype").and_then(Value::as_str).unwrap_or("missing").to_owned();
        let shape =
            sizes(fields, "shape").ok_or_else(|| wrong("has no usable shape".into(), "a list of whole numbers".into()))?;
        let (begin, end) = match sizes(fields, "data_offsets").as_deref() {
            Some(&[begin, end]) if begin <= end => (begin, end),
            _ => return Err(wrong("has no usable data_offsets".into(), "two rising whole numbers".into())),
        };
        if end > available {
            return Err(wrong(
                format!("ends at byte {end} of the data"),
                format!("at most {available} (is the file truncated?)"),
            ));
        }
        if let Some(width) = width(&dtype) {
            let bytes = shape.iter().try_fold(width, |product, &n| product.checked_mul(n));
            if bytes != Some(end - begin) {
                let needed = bytes.map_or("more bytes than can be counted".into(), |n| format!("{n} bytes"));
                return Err(wrong(format!("has {} bytes", end - begin), format!("{needed} for {dtype} {shape:?}")));
            }
        }
        Ok(Self { dtype, shape, begin, end })
    }
}

fn sizes(fields: &Map<String, Value>, name: &str) -> Option<Vec<usize>> {
    fields.get(name)?.as_array()?.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
