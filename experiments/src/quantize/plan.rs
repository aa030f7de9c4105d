//! The new file before a byte of it is written: its header, and for every tensor of the old one what to do and where the
//! result goes. Knows names, shapes and offsets; nothing of numbers.

use super::{
    codes::Width,
    settings::{Fate, Settings},
    transform,
};
use crate::checkpoint::{Checkpoint, Entry};
use anyhow::Result;
use safetensors::Dtype;
use serde_json::{Map, json};
use std::collections::BTreeSet;

/// Work on one tensor. Offsets count from the start of the new file.
#[derive(Clone, Debug)]
pub enum Job<'a> {
    /// Copied byte for byte.
    Copy {
        /// The old tensor.
        from: &'a Entry,
        /// Where it goes.
        to: u64,
    },
    /// Signs of the Hadamard transform of all matrices with this many inputs.
    Signs {
        /// The length.
        inputs: usize,
        /// Where they go.
        to: u64,
    },
    /// Codes, scales and, at 4 bits, zero points.
    Quantise {
        /// The old tensor, `[out, in]`.
        from: &'a Entry,
        /// Bits of a code.
        width: Width,
        /// Where the codes go.
        codes: u64,
        /// Where the scales go.
        scales: u64,
        /// Where the zero points go.
        zeros: Option<u64>,
    },
}

impl Job<'_> {
    /// Name of the tensor that it makes.
    pub fn name(&self) -> String {
        match self {
            Self::Copy { from, .. } | Self::Quantise { from, .. } => from.name.clone(),
            Self::Signs { inputs, .. } => transform::signs_name(*inputs),
        }
    }
}

/// A safetensors file to be.
pub struct Plan<'a> {
    /// Header length, header and padding.
    pub header: Vec<u8>,
    /// In the order of names.
    pub jobs: Vec<Job<'a>>,
    /// Length of the file.
    pub size: u64,
}

/// A tensor of the new file, and which of its job's offsets it fills.
struct Planned {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    job: usize,
    slot: usize,
}

impl<'a> Plan<'a> {
    /// Lays out every tensor of a checkpoint; without settings all are copied.
    pub fn new(source: &'a Checkpoint, settings: Option<&Settings>) -> Result<Self> {
        let mut jobs = Vec::new();
        let mut planned: Vec<Planned> = Vec::new();
        let mut lengths = BTreeSet::new();
        for from in source.entries() {
            let mut add = |name: String, dtype, shape, slot| planned.push(Planned { name, dtype, shape, job: jobs.len(), slot });
            match (settings.map_or(Fate::Kept, |s| s.fate(from)), &from.shape[..]) {
                (Fate::LeftOut, _) => continue,
                (Fate::Quantised(width), &[out, inputs]) => {
                    let groups = inputs.div_ceil(settings.map_or(inputs, |s| s.group));
                    add(format!("{}.scale", from.name), Dtype::BF16, vec![out, groups], 1);
                    match width {
                        Width::Eight => add(from.name.clone(), Dtype::I8, vec![out, inputs], 0),
                        Width::Four => {
                            add(from.name.clone(), Dtype::U8, vec![out, inputs.div_ceil(2)], 0);
                            add(format!("{}.zero", from.name), Dtype::U8, vec![out, groups.div_ceil(2)], 2);
                        }
                    }
                    lengths.insert(inputs);
                    let zeros = (width == Width::Four).then_some(0);
                    jobs.push(Job::Quantise { from, width, codes: 0, scales: 0, zeros });
                }
                _ => {
                    add(from.name.clone(), from.dtype, from.shape.clone(), 0);
                    jobs.push(Job::Copy { from, to: 0 });
                }
            }
        }
        for inputs in lengths.into_iter().filter(|_| settings.is_some_and(|s| s.hadamard > 0)) {
            let name = transform::signs_name(inputs);
            planned.push(Planned { name, dtype: Dtype::I8, shape: vec![inputs], job: jobs.len(), slot: 0 });
            jobs.push(Job::Signs { inputs, to: 0 });
        }
        // Wide types first: every tensor then begins at a multiple of its element.
        planned.sort_by(|a, b| b.dtype.bitsize().cmp(&a.dtype.bitsize()).then(a.name.cmp(&b.name)));
        let (header, data_len) = header(&planned)?;
        let mut begin = header.len() as u64;
        for tensor in &planned {
            let (slot, place) = (tensor.slot, begin);
            match &mut jobs[tensor.job] {
                Job::Copy { to, .. } | Job::Signs { to, .. } => *to = place,
                Job::Quantise { codes, .. } if slot == 0 => *codes = place,
                Job::Quantise { scales, .. } if slot == 1 => *scales = place,
                Job::Quantise { zeros, .. } => *zeros = Some(place),
            }
            begin += tensor.bytes();
        }
        Ok(Self { size: header.len() as u64 + data_len, header, jobs })
    }
}

impl Planned {
    fn bytes(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product::<u64>() * self.dtype.bitsize() as u64 / 8
    }
}

/// The header with its length in front, padded with spaces to a multiple of 8; and the bytes of all tensors.
fn header(planned: &[Planned]) -> Result<(Vec<u8>, u64)> {
    let mut fields = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut end = 0;
    for tensor in planned {
        let begin = end;
        end += tensor.bytes();
        let entry = json!({"dtype": serde_json::to_value(tensor.dtype)?, "shape": tensor.shape, "data_offsets": [begin, end]});
        fields.insert(tensor.name.clone(), entry);
    }
    let mut text = serde_json::to_vec(&fields)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok(([&(text.len() as u64).to_le_bytes(), &text[..]].concat(), end))
}
