//! How weights are stored, as `quantization_config` says it: the q8 scheme, and L and M, whose arithmetic is 8-bit.
//! Knows the words and their limits; nothing of tensors (docs/formats.md has those).

use crate::ConfigError;
use crate::config_json::Fields;
use serde::{Deserialize, Serialize};

/// How the weights are stored. A tensor says itself whether it has codes; this says what codes mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuantScheme {
    /// f32, f16 or bf16 tensors.
    None,
    /// 8-bit symmetric codes with a bf16 scale per `group` inputs: a weight is exactly `scale * code` (docs/formats.md).
    Q8 {
        /// Inputs that share a scale.
        group: usize,
    },
    /// 8-bit symmetric codes, a bf16 scale per group: `scale * code`.
    L(CodeFormat),
    /// 4-bit codes, a bf16 scale and a 4-bit zero point per group: `scale * (code - zero)`.
    M(CodeFormat),
}

/// What L and M share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeFormat {
    /// Inputs that share a scale, and activations that share one: 32, 64 or 128.
    pub group: usize,
    /// The codes are of `W D H / 32` and multiply `H D x` ([`hadamard`](crate::hadamard)).
    pub hadamard: bool,
    /// What the codes multiply.
    pub activations: Activations,
}

/// Number type of a quantised linear's input. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// 8-bit codes with a scale per row and group; sums of a group are exact integers.
    Int8,
    /// f32, multiplied with the weights that the codes stand for.
    F32,
}

/// Group sizes of L and M: multiples of the Hadamard block, small enough for exact sums in f32.
const GROUPS: [usize; 3] = [32, 64, 128];

impl QuantScheme {
    /// Reads the `quantization_config` of a config.json, the target's or a drafter's. Absent means [`QuantScheme::None`].
    pub fn from_json(file: &str, config: &str) -> Result<Self, ConfigError> {
        Self::of(&Fields::parse(file, config)?)
    }

    pub(crate) fn of(root: &Fields) -> Result<Self, ConfigError> {
        let Some(quant) = root.object("quantization_config")? else { return Ok(Self::None) };
        let method = quant.text("quant_method")?;
        if method != "straw" {
            return Err(ConfigError::field("quant_method", method, "straw (convert the original with `straw quantize`)"));
        }
        match quant.text("scheme")?.as_str() {
            "q8" => Ok(Self::Q8 { group: quant.size("group_size")? }),
            "l" => Ok(Self::L(CodeFormat::of(&quant, true)?)),
            "m" => Ok(Self::M(CodeFormat::of(&quant, false)?)),
            other => Err(ConfigError::field("quantization_config.scheme", other, "q8, l or m")),
        }
    }

    /// The format of L or M.
    pub fn codes(&self) -> Option<CodeFormat> {
        match *self {
            Self::L(format) | Self::M(format) => Some(format),
            Self::None | Self::Q8 { .. } => None,
        }
    }

    /// The same storage with other activations; schemes without 8-bit arithmetic stay as they are.
    pub fn with_activations(self, activations: Activations) -> Self {
        match self {
            Self::L(format) => Self::L(CodeFormat { activations, ..format }),
            Self::M(format) => Self::M(CodeFormat { activations, ..format }),
            other => other,
        }
    }
}

impl CodeFormat {
    fn of(quant: &Fields, symmetric: bool) -> Result<Self, ConfigError> {
        let version = quant.size("version")?;
        if version != 2 {
            let expected = "2 (this straw knows no other; convert the original anew with `straw quantize`)";
            return Err(ConfigError::field("quantization_config.version", version, expected));
        }
        let group = quant.size("group_size")?;
        if !GROUPS.contains(&group) {
            return Err(ConfigError::field("quantization_config.group_size", group, "32, 64 or 128"));
        }
        if let Some(said) = quant.flag("symmetric")?
            && said != symmetric
        {
            return Err(ConfigError::field("quantization_config.symmetric", said, "true for scheme l, false for scheme m"));
        }
        let hadamard = match quant.optional_size("hadamard")? {
            Some(0) => false,
            Some(32) => true,
            Some(other) => {
                return Err(ConfigError::field("quantization_config.hadamard", other, "32 (blocks of 32) or 0 (none)"));
            }
            None => return Err(ConfigError::field("quantization_config.hadamard", "missing", "32 (blocks of 32) or 0 (none)")),
        };
        let activations = match quant.text("activations")?.as_str() {
            "int8" => Activations::Int8,
            "f32" => Activations::F32,
            other => return Err(ConfigError::field("quantization_config.activations", other, "int8 or f32")),
        };
        Ok(Self { group, hadamard, activations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(quant: Value) -> Result<QuantScheme, ConfigError> {
        QuantScheme::from_json("config.json", &json!({ "quantization_config": quant }).to_string())
    }

    fn l() -> Value {
        json!({"quant_method": "straw", "scheme": "l", "version": 2, "group_size": 64, "hadamard": 32, "activations": "int8",
            "symmetric": true})
    }

    #[test]
    fn every_scheme_is_read() {
        let format = CodeFormat { group: 64, hadamard: true, activations: Activations::Int8 };
        assert_eq!(read(l()).unwrap(), QuantScheme::L(format));
        let mut m = l();
        m["scheme"] = json!("m");
        m["symmetric"] = json!(false);
        m["hadamard"] = json!(0);
        m["activations"] = json!("f32");
        let plain = CodeFormat { hadamard: false, activations: Activations::F32, ..format };
        assert_eq!(read(m).unwrap(), QuantScheme::M(plain));
        let q8 = json!({"quant_method": "straw", "scheme": "q8", "version": 1, "bits": 8, "group_size": 64, "symmetric": true});
        assert_eq!(read(q8).unwrap(), QuantScheme::Q8 { group: 64 });
        assert_eq!(read(Value::Null).unwrap(), QuantScheme::None);
        let other = QuantScheme::L(format).with_activations(Activations::F32);
        assert_eq!(other.codes(), Some(CodeFormat { activations: Activations::F32, ..format }));
    }

    #[test]
    fn every_wrong_field_gets_a_sentence_with_the_way_out() {
        for (field, value, sentence) in [
            ("scheme", json!("s"), "quantization_config.scheme is s, expected q8, l or m"),
            ("version", json!(3), "quantization_config.version is 3, expected 2"),
            ("version", Value::Null, "version is missing"),
            ("group_size", json!(48), "quantization_config.group_size is 48, expected 32, 64 or 128"),
            ("hadamard", json!(64), "quantization_config.hadamard is 64, expected 32 (blocks of 32) or 0 (none)"),
            ("hadamard", Value::Null, "quantization_config.hadamard is missing"),
            ("activations", json!("int4"), "quantization_config.activations is int4, expected int8 or f32"),
            ("symmetric", json!(false), "quantization_config.symmetric is false, expected true for scheme l"),
            ("quant_method", json!("gptq"), "expected straw (convert the original with `straw quantize`)"),
        ] {
            let mut quant = l();
            quant[field] = value;
            let error = read(quant).unwrap_err().to_string();
            assert!(error.contains(sentence), "{error}");
        }
    }
}
