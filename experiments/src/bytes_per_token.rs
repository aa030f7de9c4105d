//! Bytes of weights that one plain decoding pass reads, as a model is stored or as it would be in a scheme. Reads headers only.

use crate::{checkpoint::Checkpoint, model};
use anyhow::Result;
use specdec::QuantScheme;
use std::path::Path;

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// As the files have it.
    AsStored,
    /// 8-bit codes, a bf16 scale per 64.
    L,
    /// 4-bit codes, a bf16 scale and a 4-bit zero point per 64; the head at 8 bits.
    M,
}

impl Scheme {
    /// As stored; and L and M, when the model is not quantised yet.
    pub fn of_folder(dir: &Path) -> Result<Vec<Self>> {
        let plain = model::config(dir)?.quantisation == QuantScheme::None;
        Ok(if plain { vec![Self::AsStored, Self::L, Self::M] } else { vec![Self::AsStored] })
    }

    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::AsStored => "as stored",
            Self::L => "L",
            Self::M => "M",
        }
    }

    /// Of a `[out, in]` matrix.
    fn matrix(self, out: u64, inputs: u64, head: bool) -> u64 {
        let groups = inputs.div_ceil(64);
        match self {
            Self::M if !head => out * (inputs.div_ceil(2) + 2 * groups + groups.div_ceil(2)),
            _ => out * (inputs + 2 * groups),
        }
    }
}

/// Every target tensor once; of an embedding that is not also the head, one row. Drafters and vision are not read.
pub fn bytes_per_token(dir: &Path, scheme: Scheme) -> Result<u64> {
    let config = model::config(dir)?;
    let target = Checkpoint::open(dir)?;
    let mut total = 0;
    for entry in target.entries().filter(|e| !e.name.starts_with("mtp.") && !e.name.starts_with("model.visual.")) {
        let embedding = entry.name.contains("embed_tokens.");
        let gate = ["in_proj_a.", "in_proj_b."].iter().any(|g| entry.name.contains(g));
        let bytes = match (scheme, &entry.shape[..]) {
            (Scheme::L | Scheme::M, &[out, inputs]) if !gate => {
                scheme.matrix(out as u64, inputs as u64, embedding || entry.name.starts_with("lm_head."))
            }
            _ => entry.bytes,
        };
        total += if embedding && !config.tie_word_embeddings { bytes / config.vocab_size as u64 } else { bytes };
    }
    Ok(total)
}
