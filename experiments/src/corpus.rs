//! Texts to measure or calibrate on: a plain text file, or JSON lines of `{workload, text}` or `{workload, prompt, answer}`.
//! Gives token ids in windows. Knows the model folder's tokenizer and chat template; nothing of engines.

use crate::{
    chat::{Chat, Message},
    text::Text,
};
use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::{collections::BTreeMap, fs, path::Path};

/// A window of one text.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Kind of text, for tables.
    pub workload: String,
    /// Number of the text: windows of one text are not independent.
    pub text: usize,
    /// Token ids, at most a window.
    pub tokens: Vec<u32>,
    /// First token that counts as predicted; the ones before are its context. At least 1.
    pub first: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    workload: Option<String>,
    text: Option<String>,
    prompt: Option<String>,
    answer: Option<String>,
    /// Where a row came from; for readers.
    #[serde(rename = "id")]
    _id: Option<String>,
    #[serde(rename = "source")]
    _source: Option<String>,
    #[serde(rename = "license")]
    _license: Option<String>,
}

/// Reads a file with the tokenizer of a model folder. A text longer than `window` tokens becomes several windows; of a
/// prompt with its answer only the answer counts as predicted, and only its first window is taken.
///
/// Errors: an unreadable file, a row that is neither form, no text of at least two tokens.
pub fn read(file: &Path, model: &Path, window: usize) -> Result<Vec<Sample>> {
    let place = || file.display().to_string();
    let content = fs::read_to_string(file).with_context(place)?;
    let text = Text::load(model)?;
    let stem = file.file_stem().map_or("text".into(), |s| s.to_string_lossy().into_owned());
    let mut samples = Vec::new();
    if file.extension().is_none_or(|e| e != "jsonl") {
        split(&mut samples, &stem, 0, &text.encode_plain(&content)?, window);
    } else {
        let mut chat = None;
        for (i, line) in content.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let place = || format!("{}, line {}", file.display(), i + 1);
            let row: Row = serde_json::from_str(line).with_context(place)?;
            let workload = row.workload.unwrap_or_else(|| stem.clone());
            match (row.text, row.prompt, row.answer) {
                (Some(content), None, None) => split(&mut samples, &workload, i, &text.encode_plain(&content)?, window),
                (None, Some(prompt), Some(answer)) => {
                    let chat = match &mut chat {
                        Some(chat) => chat,
                        none => none.insert(Chat::load(model).with_context(place)?),
                    };
                    let mut tokens = chat.encode(&[Message { role: "user".into(), content: prompt }], &BTreeMap::new(), &text)?;
                    let first = tokens.len();
                    tokens.extend(text.encode_plain(&answer)?);
                    tokens.truncate(window);
                    if first >= 1 && tokens.len() > first {
                        samples.push(Sample { workload, text: i, tokens, first });
                    }
                }
                _ => bail!("{}: a row needs either text, or prompt and answer", place()),
            }
        }
    }
    ensure!(!samples.is_empty(), "{}: holds no text of at least two tokens", place());
    Ok(samples)
}

fn split(samples: &mut Vec<Sample>, workload: &str, text: usize, tokens: &[u32], window: usize) {
    for tokens in tokens.chunks(window).filter(|w| w.len() > 1) {
        samples.push(Sample { workload: workload.into(), text, tokens: tokens.to_vec(), first: 1 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn tiny() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/straw-tiny")
    }

    fn read_text(name: &str, content: &str) -> Result<Vec<Sample>> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(name);
        fs::write(&file, content).unwrap();
        read(&file, &tiny(), 8)
    }

    #[test]
    fn plain_text_is_cut_into_windows_of_one_text() {
        let samples = read_text("notes.txt", "one two three four five six seven eight nine ten eleven twelve").unwrap();
        assert!(samples.len() > 1 && samples.iter().all(|s| s.workload == "notes" && s.text == 0 && s.first == 1));
        assert!(samples.iter().all(|s| (2..=8).contains(&s.tokens.len())));
    }

    #[test]
    fn of_an_answer_only_the_answer_counts() {
        let rows = "{\"workload\": \"a\", \"text\": \"some words here\"}\n\n{\"prompt\": \"x\", \"answer\": \"yes it is so\"}\n";
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mixed.jsonl");
        fs::write(&file, rows).unwrap();
        let samples = read(&file, &tiny(), 100).unwrap();
        let names: Vec<(&str, usize)> = samples.iter().map(|s| (s.workload.as_str(), s.text)).collect();
        assert_eq!(names, [("a", 0), ("mixed", 2)]);
        let answer = Text::load(&tiny()).unwrap().encode_plain("yes it is so").unwrap();
        assert_eq!(samples[1].tokens[samples[1].first..], answer);
    }

    #[test]
    fn rows_of_neither_form_and_empty_files_are_sentences() {
        for (name, content, words) in [
            ("a.jsonl", "{\"prompt\": \"x\"}", "line 1: a row needs either text, or prompt and answer"),
            ("a.jsonl", "{\"text\": \"x y\"}\n{", "line 2"),
            ("a.jsonl", "{\"txt\": 3}", "txt"),
            ("a.txt", "", "holds no text of at least two tokens"),
        ] {
            let text = format!("{:#}", read_text(name, content).unwrap_err());
            assert!(text.contains(words), "{text}");
        }
    }
}
