//! A prompt set: JSON lines with `id`, `workload` and `prompt`; other fields are somebody else's. Knows no model.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

/// One prompt.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Prompt {
    /// Unique in the file.
    pub id: String,
    /// Kind of text, such as `code`.
    pub workload: String,
    /// The user's message.
    pub prompt: String,
}

/// Reads a set, or the named workloads of it. Errors: a line that is no prompt, an id twice, a workload that no line has.
pub fn read(path: &Path, workloads: &[String]) -> Result<Vec<Prompt>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let (mut prompts, mut ids) = (Vec::new(), BTreeSet::new());
    for (i, line) in BufReader::new(file).lines().enumerate() {
        let place = || format!("{}: line {}", path.display(), i + 1);
        let line = line.with_context(place)?;
        if line.trim().is_empty() {
            continue;
        }
        let prompt: Prompt = serde_json::from_str(&line).with_context(place)?;
        ensure!(!prompt.prompt.is_empty(), "{}: prompt {:?} is empty", place(), prompt.id);
        ensure!(ids.insert(prompt.id.clone()), "{}: the id {:?} appears twice", place(), prompt.id);
        prompts.push(prompt);
    }
    let known: BTreeSet<&str> = prompts.iter().map(|p| p.workload.as_str()).collect();
    if let Some(unknown) = workloads.iter().find(|w| !known.contains(w.as_str())) {
        let known: Vec<&str> = known.into_iter().collect();
        anyhow::bail!("{}: no prompt of workload {unknown:?}, expected one of {}", path.display(), known.join(", "));
    }
    prompts.retain(|p| workloads.is_empty() || workloads.contains(&p.workload));
    ensure!(!prompts.is_empty(), "{}: holds no prompt, expected JSON lines with id, workload and prompt", path.display());
    Ok(prompts)
}
