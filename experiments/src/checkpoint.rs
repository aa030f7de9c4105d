//! What lies in safetensors files: names, number types, shapes and places, read from the headers alone.
//! Every field of a header is checked against the file before it is believed. Knows nothing of models.

use anyhow::{Context, Result, anyhow, bail, ensure};
use half::{bf16, f16};
use safetensors::Dtype;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{BufReader, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// Longest header believed: a model of 100 000 tensors has about 15 MB.
const MAX_HEADER: u64 = 100 << 20;

/// One tensor and where its bytes are.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Name in the file.
    pub name: String,
    /// Number type.
    pub dtype: Dtype,
    /// Sizes, slowest first.
    pub shape: Vec<usize>,
    /// Bytes.
    pub bytes: u64,
    /// Index into the checkpoint's files.
    file: usize,
    /// First byte, from the start of the file.
    offset: u64,
}

impl Entry {
    /// Numbers in the tensor.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// All tensors of one model folder or file, by name.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<PathBuf>,
    entries: BTreeMap<String, Entry>,
}

impl Checkpoint {
    /// Reads the headers of `DIR/model.safetensors`, of the shards that `model.safetensors.index.json` names, or of one file.
    ///
    /// Errors: no such file, a header that contradicts its file, a tensor in two shards or in none.
    pub fn open(path: &Path) -> Result<Self> {
        let mut checkpoint = Self { files: Vec::new(), entries: BTreeMap::new() };
        let (single, index) = (path.join("model.safetensors"), path.join("model.safetensors.index.json"));
        if path.is_file() {
            checkpoint.add(path)?;
        } else if single.is_file() {
            checkpoint.add(&single)?;
        } else if index.is_file() {
            let map = shard_names(&index)?;
            for shard in map.values().collect::<BTreeSet<_>>() {
                checkpoint.add(&path.join(shard))?;
            }
            if let Some(name) = map.keys().find(|name| !checkpoint.entries.contains_key(*name)) {
                bail!("{}: names tensor {name:?}, which is in none of its shards", index.display());
            }
        } else {
            bail!("{}: has neither model.safetensors nor model.safetensors.index.json", path.display());
        }
        Ok(checkpoint)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let file = self.files.len();
        self.files.push(path.to_owned());
        for mut entry in header(path)? {
            entry.file = file;
            if let Some(other) = self.entries.get(&entry.name) {
                let first = self.files[other.file].display();
                bail!("{}: tensor {:?} is in {first} already", path.display(), entry.name);
            }
            self.entries.insert(entry.name.clone(), entry);
        }
        Ok(())
    }

    /// Tensors in the order of their names.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// All files.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The file that holds a tensor.
    pub fn file(&self, entry: &Entry) -> &Path {
        &self.files[entry.file]
    }

    /// A reader of exactly the tensor's bytes.
    pub fn bytes(&self, entry: &Entry) -> Result<impl Read> {
        let path = self.file(entry);
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        file.seek(SeekFrom::Start(entry.offset)).with_context(|| path.display().to_string())?;
        Ok(BufReader::new(file).take(entry.bytes))
    }

    /// Calls `each(row index, row)` for every row of a rank-2 tensor, as f32.
    ///
    /// Errors: not a rank-2 tensor of F32, F16 or BF16; a NaN or an infinity; what `each` returns.
    pub fn rows(&self, entry: &Entry, mut each: impl FnMut(usize, &[f32]) -> Result<()>) -> Result<()> {
        let place = || format!("{}: tensor {:?}", self.file(entry).display(), entry.name);
        let &[rows, columns] = &entry.shape[..] else {
            bail!("{} has shape {:?}, expected two dimensions", place(), entry.shape)
        };
        let width = match entry.dtype {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::BF16 => 2,
            other => bail!("{} has number type {other:?}, expected F32, F16 or BF16", place()),
        };
        let (mut reader, mut raw, mut row) = (self.bytes(entry)?, vec![0; columns * width], vec![0.0f32; columns]);
        for r in 0..rows {
            reader.read_exact(&mut raw).with_context(place)?;
            for (value, b) in row.iter_mut().zip(raw.chunks_exact(width)) {
                *value = match entry.dtype {
                    Dtype::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                    Dtype::F16 => f16::from_le_bytes([b[0], b[1]]).to_f32(),
                    _ => bf16::from_le_bytes([b[0], b[1]]).to_f32(),
                };
            }
            if let Some(c) = row.iter().position(|v| !v.is_finite()) {
                bail!("{} holds {} at [{r}, {c}], expected finite numbers", place(), row[c]);
            }
            each(r, &row)?;
        }
        Ok(())
    }
}

fn shard_names(index: &Path) -> Result<BTreeMap<String, String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let place = || index.display().to_string();
    let text = std::fs::read_to_string(index).with_context(place)?;
    let Index { weight_map } = serde_json::from_str(&text).with_context(place)?;
    if let Some(shard) = weight_map.values().find(|s| s.contains(['/', '\\']) || s.as_str() == "..") {
        bail!("{}: shard {shard:?} is not a plain file name", index.display());
    }
    Ok(weight_map)
}

/// The tensors of one file, `file` still 0.
fn header(path: &Path) -> Result<Vec<Entry>> {
    let place = || path.display().to_string();
    let mut file = File::open(path).with_context(place)?;
    let size = file.metadata().with_context(place)?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|_| anyhow!("{}: has {size} bytes, too few for a safetensors header", place()))?;
    let length = u64::from_le_bytes(length);
    let room = (size - 8).min(MAX_HEADER);
    ensure!((2..=room).contains(&length), "{}: header length is {length}, expected 2 to {room} (is the file whole?)", place());
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).with_context(place)?;
    let fields: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&text).map_err(|e| anyhow!("{}: header is not a JSON object: {e}", place()))?;
    let data = 8 + length;
    let mut entries = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        if name == "__metadata__" {
            continue;
        }
        let entry = entry(&name, value, data).with_context(place)?;
        ensure!(
            entry.offset + entry.bytes <= size,
            "{}: tensor {name:?} ends at byte {}, the file at {size} (is the file whole?)",
            place(),
            entry.offset + entry.bytes
        );
        entries.push(entry);
    }
    let mut spans: Vec<&Entry> = entries.iter().collect();
    spans.sort_by_key(|e| (e.offset, e.bytes));
    let mut end = data;
    for entry in spans {
        ensure!(
            entry.offset == end,
            "{}: tensor {:?} begins at byte {}, expected {end} (tensors may neither overlap nor leave gaps)",
            place(),
            entry.name,
            entry.offset
        );
        end += entry.bytes;
    }
    ensure!(end == size, "{}: tensors end at byte {end}, the file at {size}", place());
    Ok(entries)
}

fn entry(name: &str, value: serde_json::Value, data: u64) -> Result<Entry> {
    #[derive(serde::Deserialize)]
    struct Raw {
        dtype: String,
        shape: Vec<usize>,
        data_offsets: (u64, u64),
    }
    let raw: Raw = serde_json::from_value(value).map_err(|e| anyhow!("tensor {name:?}: {e}"))?;
    let dtype: Dtype = serde_json::from_value(raw.dtype.clone().into())
        .map_err(|_| anyhow!("tensor {name:?} has unknown number type {:?}", raw.dtype))?;
    let bits = raw.shape.iter().try_fold(dtype.bitsize() as u64, |n, &d| n.checked_mul(d as u64));
    let (begin, end) = raw.data_offsets;
    let span = end.checked_sub(begin);
    let (Some(bits), Some(span), Some(offset)) = (bits, span, data.checked_add(begin)) else {
        bail!("tensor {name:?} has shape {:?} and offsets {begin}..{end}, which no file can hold", raw.shape);
    };
    let bytes = bits.div_ceil(8);
    ensure!(
        span == bytes && offset.checked_add(bytes).is_some(),
        "tensor {name:?} spans {span} bytes, expected {bytes} for {dtype:?} {:?}",
        raw.shape
    );
    Ok(Entry { name: name.into(), dtype, shape: raw.shape, bytes, file: 0, offset })
}

#[cfg(test)]
#[path = "checkpoint_tests.rs"]
mod tests;
