//! Token ids to text and back (the folder's tokenizer.json), whole or as a stream.
//! The stream never splits a character, and its pieces joined are the text decoded at once.

use anyhow::{Result, anyhow, ensure};
use std::{collections::BTreeMap, path::Path};
use tokenizers::Tokenizer;

/// A model's tokenizer.
pub struct Text {
    full: Tokenizer,
    /// The same without added tokens: every character is plain text to it.
    plain: Tokenizer,
    /// Added tokens (control markers): content to (id, special).
    added: BTreeMap<String, (u32, bool)>,
}

impl Text {
    /// Reads `DIR/tokenizer.json`.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("tokenizer.json");
        let place = || path.display().to_string();
        let text = std::fs::read_to_string(&path).map_err(|e| anyhow!("{}: {e} (the model has no tokenizer)", place()))?;
        let mut json: serde_json::Value = serde_json::from_str(&text).map_err(|e| anyhow!("{}: {e}", place()))?;
        ensure!(json.is_object(), "{}: not a JSON object", place());
        json["added_tokens"] = serde_json::json!([]);
        let parse = |bytes: &[u8]| Tokenizer::from_bytes(bytes).map_err(|e| anyhow!("{}: {e}", place()));
        let full = parse(text.as_bytes())?;
        let plain = parse(&serde_json::to_vec(&json)?)?;
        let added = full.get_added_tokens_decoder().into_iter().map(|(id, t)| (t.content, (id, t.special))).collect();
        Ok(Self { full, plain, added })
    }

    /// Token ids; control markers in the text become control tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        ids(&self.full, text)
    }

    /// Token ids; the text is plain whatever it contains.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        ids(&self.plain, text)
    }

    /// Control markers: content, id, and whether decoding leaves them out.
    pub fn markers(&self) -> impl Iterator<Item = (&str, u32, bool)> {
        self.added.iter().map(|(content, &(id, special))| (content.as_str(), id, special))
    }

    /// Text of all ids; special tokens and ids unknown to the tokenizer are left out.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.full.decode(ids, true).map_err(|e| anyhow!("decoding tokens: {e}"))
    }

    /// One token as it reads, control markers by their names, line breaks visible.
    pub fn name(&self, id: u32) -> String {
        match self.full.decode(&[id], false) {
            Ok(text) if !text.is_empty() => text.escape_debug().to_string(),
            _ => format!("#{id}"),
        }
    }

    /// A new stream.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { text: self, window: Vec::new(), context: 0, shown: 0 }
    }
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    Ok(tokenizer.encode(text, false).map_err(|e| anyhow!("encoding text: {e}"))?.get_ids().to_vec())
}

/// Replacement characters at the end of a text that may still become a character: one per byte at most, and a started
/// character has at most three bytes.
const MAY_CHANGE: usize = 3;

/// Text of tokens as they come.
pub struct TextStream<'a> {
    text: &'a Text,
    /// Tokens whose text is not settled, after `context` tokens whose text is.
    window: Vec<u32>,
    /// Settled tokens kept in front: some decoders look at what precedes.
    context: usize,
    /// Bytes of the window's text that were given out.
    shown: usize,
}

impl TextStream<'_> {
    /// The text that this token settles, possibly none.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.window.push(id);
        let text = self.text.decode(&self.window)?;
        let mut settled = text.as_str();
        for _ in 0..MAY_CHANGE {
            settled = settled.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(settled);
        }
        let piece = settled.get(self.shown..).unwrap_or_default().to_owned();
        self.shown += piece.len();
        if settled.len() == text.len() && !text.is_empty() {
            self.window.drain(..self.context);
            self.context = self.window.len();
            self.shown = self.text.decode(&self.window)?.len();
        }
        Ok(piece)
    }

    /// What is left when no more tokens come: an unfinished character reads as replacement characters.
    pub fn finish(&mut self) -> Result<String> {
        let text = self.text.decode(&self.window)?;
        let piece = text.get(self.shown..).unwrap_or_default().to_owned();
        self.shown = text.len();
        Ok(piece)
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
