//! The model's chat template, rendered as Transformers does, and turned into token ids in such a way that control
//! markers typed by a user stay plain text. Knows templates; nothing of models.

use crate::text::Text;
use anyhow::{Context, Result, anyhow, bail};
use minijinja::{
    Environment, Error, ErrorKind, UndefinedBehavior, Value,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde},
};
use serde::Serialize;
use std::{collections::BTreeMap, fs, path::Path};

/// One turn.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text.
    pub content: String,
}

/// A compiled template.
pub struct Chat {
    environment: Environment<'static>,
    /// `bos_token` and `eos_token` of tokenizer_config.json.
    tokens: BTreeMap<&'static str, String>,
    source: String,
}

impl Chat {
    /// Reads `chat_template.jinja`, or `chat_template` of `tokenizer_config.json`.
    ///
    /// Errors: no template (a base model: use raw text), or one that does not parse.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("tokenizer_config.json");
        let config: serde_json::Value = match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).with_context(|| path.display().to_string())?,
            Err(_) => serde_json::Value::Null,
        };
        let source = match fs::read_to_string(dir.join("chat_template.jinja")) {
            Ok(text) => text,
            Err(_) => match &config["chat_template"] {
                serde_json::Value::String(text) => text.clone(),
                serde_json::Value::Array(named) => named
                    .iter()
                    .find(|t| t["name"] == "default")
                    .and_then(|t| Some(t["template"].as_str()?.to_owned()))
                    .ok_or_else(|| anyhow!("{}: chat_template has no entry named default", path.display()))?,
                _ => bail!("{}: the model has no chat template (give --raw)", dir.display()),
            },
        };
        let text_of = |value: &serde_json::Value| value.as_str().or(value["content"].as_str()).map(str::to_owned);
        let tokens = ["bos_token", "eos_token"].into_iter().filter_map(|n| Some((n, text_of(&config[n])?))).collect();
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", python_json);
        environment.add_function("raise_exception", |text: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        let place = || format!("{}: chat template", dir.display());
        environment.add_template_owned("chat", source.clone()).with_context(place)?;
        Ok(Self { environment, tokens, source })
    }

    /// True when the template asks for a variable of that name.
    pub fn reads(&self, variable: &str) -> bool {
        self.source.contains(variable)
    }

    /// The prompt's text, the assistant's turn opened. `extra` are further variables, such as `enable_thinking`.
    pub fn render(&self, messages: &[Message], extra: &BTreeMap<String, bool>) -> Result<String> {
        let mut context: BTreeMap<&str, Value> = self.tokens.iter().map(|(k, v)| (*k, Value::from(v.clone()))).collect();
        context.extend(extra.iter().map(|(k, &v)| (k.as_str(), Value::from(v))));
        context.insert("messages", Value::from(Serde(messages)));
        context.insert("add_generation_prompt", Value::from(true));
        let template = self.environment.get_template("chat")?;
        template.render(context).map_err(|e| anyhow!("chat template: {}", e.detail().map_or(e.to_string(), str::to_owned)))
    }

    /// Token ids of the prompt. Markers become control tokens where the template wrote them, and nowhere else.
    ///
    /// Markers inside a message are broken with a character that no message contains before the template sees them, so
    /// templates may trim, split and compare as usual; the ids of the pieces around them come from a tokenizer without
    /// control tokens.
    pub fn encode(&self, messages: &[Message], extra: &BTreeMap<String, bool>, text: &Text) -> Result<Vec<u32>> {
        let all: String = messages.iter().map(|m| m.content.as_str()).collect();
        if !text.markers().any(|(marker, ..)| all.contains(marker)) {
            return text.encode(&self.render(messages, extra)?);
        }
        let breaker =
            ('\u{E000}'..='\u{F8FF}').find(|c| !all.contains(*c)).context("the message uses every private character")?;
        let broken: Vec<Message> = messages
            .iter()
            .map(|m| Message { role: m.role.clone(), content: break_markers(&m.content, text, breaker) })
            .collect();
        let rendered = self.render(&broken, extra)?;
        let (mut ids, mut rest) = (Vec::new(), rendered.as_str());
        loop {
            let next = text.markers().filter_map(|(marker, id, _)| Some((rest.find(marker)?, marker, id)));
            let next = next.min_by_key(|&(at, marker, _)| (at, usize::MAX - marker.len()));
            let plain = &rest[..next.map_or(rest.len(), |n| n.0)];
            ids.extend(text.encode_plain(&plain.replace(breaker, ""))?);
            let Some((at, marker, id)) = next else { return Ok(ids) };
            ids.push(id);
            rest = &rest[at + marker.len()..];
        }
    }
}

/// Puts `breaker` behind the first character of every marker.
fn break_markers(content: &str, text: &Text, breaker: char) -> String {
    let mut broken = String::new();
    for (i, c) in content.char_indices() {
        broken.push(c);
        if text.markers().any(|(marker, ..)| content[i..].starts_with(marker)) {
            broken.push(breaker);
        }
    }
    broken
}

/// `json.dumps(value, ensure_ascii=False)`: Jinja's own filter escapes `<` and `>`, which templates do not expect.
fn python_json(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let text = match indent {
        None => {
            let mut bytes = Vec::new();
            let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, PythonSpaces);
            value.serialize(&mut serializer).map(|()| bytes)
        }
        Some(n) => {
            let (mut bytes, spaces) = (Vec::new(), " ".repeat(n));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter)).map(|()| bytes)
        }
    };
    let bytes = text.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// Python puts a space behind `,` and `:`.
struct PythonSpaces;

impl serde_json::ser::Formatter for PythonSpaces {
    fn begin_array_value<W: std::io::Write + ?Sized>(&mut self, to: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }
    fn begin_object_key<W: std::io::Write + ?Sized>(&mut self, to: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }
    fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, to: &mut W) -> std::io::Result<()> {
        to.write_all(b": ")
    }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
