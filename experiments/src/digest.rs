//! What a model or drafter is, by content: SHA-256 over its files, so that a record says what made it. Knows no tensors.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use specdec::DrafterKind;
use std::{fs::File, io, path::Path};

/// Of a model folder's configuration and weights; `sha256:` and 64 hexadecimal digits.
pub fn model(dir: &Path) -> Result<String> {
    of(&[dir])
}

/// Of the files behind a drafter: the target's own for MTP, the drafter folders for the others, none for prompt lookup.
pub fn drafter(dir: &Path, kind: DrafterKind) -> Result<String> {
    let (dflash, weaver) = (dir.join("dflash"), dir.join("weaver"));
    match kind {
        DrafterKind::Mtp => model(dir),
        DrafterKind::Dflash | DrafterKind::DflashTree => of(&[&dflash]),
        DrafterKind::Weaver => of(&[&dflash, &weaver]),
        _ => Ok("none".into()),
    }
}

fn of(folders: &[&Path]) -> Result<String> {
    let mut hash = Sha256::new();
    for folder in folders {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let named = |name: &str| path.file_name().is_some_and(|n| n == name);
            if named("config.json") || path.extension().is_some_and(|e| e == "safetensors" || e == "gguf") {
                files.push(path);
            }
        }
        files.sort();
        for path in files {
            let mut file = File::open(&path).with_context(|| path.display().to_string())?;
            io::copy(&mut file, &mut hash).with_context(|| path.display().to_string())?;
        }
    }
    Ok(hash.finalize().iter().fold("sha256:".into(), |text, byte| format!("{text}{byte:02x}")))
}
