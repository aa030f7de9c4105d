//! Typed reads from a JSON object: a missing or ill-typed field becomes a sentence that names it.
//! Knows JSON; nothing of models.

use crate::ConfigError;
use serde_json::{Map, Value};

/// One object of a configuration file.
#[derive(Clone, Debug)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let not_json = |found: String| ConfigError::NotJson { file: file.into(), found };
        match serde_json::from_str(text).map_err(|e| not_json(e.to_string()))? {
            Value::Object(map) => Ok(Self(map)),
            other => Err(not_json(kind(&other).into())),
        }
    }

    /// Absent and `null` are the same.
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    fn read<T>(&self, name: &str, expected: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| ConfigError::field(name, value, expected))
    }

    fn required<T>(&self, name: &str, expected: &str, found: Option<T>) -> Result<T, ConfigError> {
        found.ok_or_else(|| ConfigError::field(name, "missing", expected))
    }

    pub fn object(&self, name: &str) -> Result<Option<Fields>, ConfigError> {
        self.read(name, "an object", |v| v.as_object().cloned().map(Fields))
    }

    pub fn optional_text(&self, name: &str) -> Result<Option<String>, ConfigError> {
        self.read(name, "a string", |v| v.as_str().map(str::to_owned))
    }

    pub fn text(&self, name: &str) -> Result<String, ConfigError> {
        self.required(name, "a string", self.optional_text(name)?)
    }

    pub fn texts(&self, name: &str) -> Result<Option<Vec<String>>, ConfigError> {
        self.read(name, "a list of strings", |v| v.as_array()?.iter().map(|s| s.as_str().map(str::to_owned)).collect())
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        self.read(name, "true or false", Value::as_bool)
    }

    /// A size: at least 1 and below 2^31, so that products of two sizes never overflow.
    pub fn optional_size(&self, name: &str) -> Result<Option<usize>, ConfigError> {
        let size = self.read(name, "a whole number below 2^31", |v| v.as_u64().filter(|&n| n < 1 << 31))?;
        Ok(size.map(|n| n as usize))
    }

    pub fn size(&self, name: &str) -> Result<usize, ConfigError> {
        let size = self.required(name, "a whole number of at least 1", self.optional_size(name)?)?;
        if size == 0 {
            return Err(ConfigError::field(name, 0, "a whole number of at least 1"));
        }
        Ok(size)
    }

    pub fn sizes(&self, name: &str) -> Result<Option<Vec<usize>>, ConfigError> {
        self.read(name, "a list of whole numbers", |v| {
            v.as_array()?.iter().map(|n| n.as_u64().filter(|&n| n < 1 << 31).map(|n| n as usize)).collect()
        })
    }

    pub fn optional_positive(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        self.read(name, "a number above 0", |v| v.as_f64().filter(|x| *x > 0.0 && x.is_finite()))
    }

    pub fn positive(&self, name: &str) -> Result<f64, ConfigError> {
        self.required(name, "a number above 0", self.optional_positive(name)?)
    }

    /// One id or a list of ids; empty when absent.
    pub fn ids(&self, name: &str) -> Result<Vec<u32>, ConfigError> {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let ids = self.read(name, "a token id or a list of token ids", |v| match v.as_array() {
            Some(list) => list.iter().map(id).collect(),
            None => Some(vec![id(v)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
