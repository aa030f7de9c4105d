//! One safetensors file: header length (u64, little-endian), JSON header, data. The header is judged before it is believed:
//! every length and offset against the file's size. Data is read when it is asked for. Knows nothing of models or numbers.

use crate::error::ReferenceError;
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::Path,
};

/// One file.
pub(crate) struct Shard {
    /// Its path.
    pub file: String,
    data: u64,
    /// What the header names.
    pub tensors: BTreeMap<String, Entry>,
}

/// One tensor.
pub(crate) struct Entry {
    pub dtype: String,
    pub shape: Vec<usize>,
    begin: usize,
    end: usize,
}

impl Shard {
    /// Reads and checks the header.
    pub fn open(path: &Path) -> Result<Self, ReferenceError> {
        let file = path.display().to_string();
        let unread = |e: std::io::Error| ReferenceError::Read { file: file.clone(), reason: e.to_string() };
        let mut reader = File::open(path).map_err(unread)?;
        let size = reader.metadata().map_err(unread)?.len() as usize;
        if size < 8 {
            let found = format!("{size} bytes");
            return Err(ReferenceError::file(&file, found, "at least the 8 bytes of a safetensors header length"));
        }
        let mut length = [0; 8];
        reader.read_exact(&mut length).map_err(unread)?;
        let length = u64::from_le_bytes(length);
        let room = size - 8;
        let Some(header_len) = usize::try_from(length).ok().filter(|&n| n > 0 && n <= room) else {
            return Err(ReferenceError::file(
                &file,
                format!("a header of {length} bytes"),
                format!("1 to {room} bytes of header"),
            ));
        };
        let mut header = vec![0; header_len];
        reader.read_exact(&mut header).map_err(unread)?;
        let tensors = tensors(&file, &header, room - header_len)?;
        Ok(Self { file, data: 8 + length, tensors })
    }

    /// Bytes `range` of a tensor.
    pub fn read(&self, entry: &Entry, range: std::ops::Range<usize>) -> Result<Vec<u8>, ReferenceError> {
        let unread = |e: std::io::Error| ReferenceError::Read { file: self.file.clone(), reason: e.to_string() };
        let mut file = File::open(&self.file).map_err(unread)?;
        file.seek(SeekFrom::Start(self.data + (entry.begin + range.start) as u64)).map_err(unread)?;
        let mut bytes = vec![0; range.len()];
        file.read_exact(&mut bytes).map_err(unread)?;
        Ok(bytes)
    }
}

fn tensors(file: &str, header: &[u8], available: usize) -> Result<BTreeMap<String, Entry>, ReferenceError> {
    let header: Value = serde_json::from_slice(header)
        .map_err(|e| ReferenceError::file(file, format!("a header that is no JSON ({e})"), "a safetensors header"))?;
    let Value::Object(header) = header else {
        return Err(ReferenceError::file(file, "a header that is no JSON object", "a safetensors header"));
    };
    let entry = |(name, value): (&String, &Value)| Ok((name.clone(), Entry::read(file, name, value, available)?));
    header.iter().filter(|(name, _)| name.as_str() != "__metadata__").map(entry).collect()
}

impl Entry {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.end - self.begin
    }

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

/// File names of the shards, each once.
pub(crate) fn shard_names(index: &Path) -> Result<Vec<String>, ReferenceError> {
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
