//! Reads kernels, their arguments, the structs of constants and the sizes that the host must know. The shaders keep to a
//! part of the language (fast/src/kernels/prelude.metal); whatever leaves it is an error that names file and kernel.

use crate::text::{bracketed, name, split_list, without_comments, words};

/// Everything that the shader files declare to the host.
#[derive(Clone, Debug, Default)]
pub struct Shaders {
    /// File name and text, in the order of compilation.
    pub files: Vec<(String, String)>,
    /// In the order of the files.
    pub kernels: Vec<Kernel>,
    /// Structs that constants consist of.
    pub structs: Vec<Struct>,
    /// `#define NAME 123u`.
    pub sizes: Vec<Size>,
}

/// `kernel void name(...)`.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The function's name.
    pub name: String,
    /// The file that holds it.
    pub file: String,
    /// In the order of the function's parameters.
    pub arguments: Vec<Argument>,
}

/// A kernel's parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// `device const T* name [[buffer(index)]]`, or without `const`.
    Buffer {
        /// Place in the argument table.
        index: usize,
        /// The parameter's name.
        name: String,
        /// The element's type, as written.
        element: String,
        /// `const` makes an input.
        role: Role,
    },
    /// `constant T& name [[buffer(index)]]`.
    Constant {
        /// Place in the argument table.
        index: usize,
        /// The parameter's name.
        name: String,
        /// A struct, or a number type.
        of: FieldType,
    },
    /// A thread's place: `uint name [[attribute]]`.
    Thread {
        /// Which.
        place: ThreadIndex,
        /// 1 (`uint`), 2 or 3 components.
        width: usize,
    },
}

/// What a kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Only reads it.
    Input,
    /// Writes it, and may read it.
    Output,
}

/// A struct of constants.
#[derive(Clone, Debug)]
pub struct Struct {
    /// Its name.
    pub name: String,
    /// In order.
    pub fields: Vec<Field>,
}

/// A field of a struct of constants.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its type.
    pub of: FieldType,
}

/// Types of 4 bytes, and structs of them: their layout is the same in every language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// `uint`
    Uint,
    /// `int`
    Int,
    /// `float`
    Float,
    /// A struct that was declared before.
    Struct(String),
}

/// A number that host and shader share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Size {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: u32,
}

/// What a thread may ask of its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadIndex {
    /// `thread_position_in_grid`
    InGrid,
    /// `threadgroup_position_in_grid`
    Group,
    /// `thread_position_in_threadgroup`
    InGroup,
    /// `threads_per_threadgroup`
    GroupSize,
    /// `threadgroups_per_grid`
    Groups,
    /// `thread_index_in_threadgroup`
    FlatInGroup,
    /// `thread_index_in_simdgroup`
    Lane,
    /// `simdgroup_index_in_threadgroup`
    Simdgroup,
    /// `simdgroups_per_threadgroup`
    Simdgroups,
}

/// A shader that leaves the conventions.
#[derive(Debug, thiserror::Error)]
pub enum ShaderError {
    /// A kernel's declaration.
    #[error("{file}: kernel {kernel}: found `{found}`, expected {expected}")]
    Kernel {
        /// The file.
        file: String,
        /// The kernel.
        kernel: String,
        /// The text in question.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// Anything else.
    #[error("{file}: found `{found}`, expected {expected}")]
    File {
        /// The file.
        file: String,
        /// The text in question.
        found: String,
        /// What it should be.
        expected: String,
    },
}

impl Shaders {
    /// Reads files (name, text) that are compiled as one, in this order.
    pub fn parse(files: Vec<(String, String)>) -> Result<Self, ShaderError> {
        let mut shaders = Self::default();
        for (file, text) in &files {
            let text = without_comments(text);
            shaders.sizes.extend(text.lines().filter_map(size));
            structs(&text, &mut shaders.structs);
            for at in words(&text, "kernel") {
                let kernel = kernel(file, &text[at + "kernel".len()..], &shaders.structs)?;
                if let Some(other) = shaders.kernels.iter().find(|k| k.name == kernel.name) {
                    return Err(error(file, &kernel.name, &kernel.name, &format!("another name than in {}", other.file)));
                }
                shaders.kernels.push(kernel);
            }
        }
        shaders.files = files;
        Ok(shaders)
    }
}

impl Kernel {
    /// Buffers and constants, in the order of the argument table.
    pub fn table(&self) -> Vec<&Argument> {
        let mut table: Vec<&Argument> = self.arguments.iter().filter(|a| a.index().is_some()).collect();
        table.sort_by_key(|a| a.index());
        table
    }
}

impl Argument {
    /// Place in the argument table.
    pub fn index(&self) -> Option<usize> {
        match self {
            Self::Buffer { index, .. } | Self::Constant { index, .. } => Some(*index),
            Self::Thread { .. } => None,
        }
    }
}

impl FieldType {
    /// As the shading language writes it.
    pub fn shader_name(&self) -> &str {
        match self {
            Self::Uint => "uint",
            Self::Int => "int",
            Self::Float => "float",
            Self::Struct(name) => name,
        }
    }
}

const PLACES: [(&str, ThreadIndex); 9] = [
    ("thread_position_in_grid", ThreadIndex::InGrid),
    ("threadgroup_position_in_grid", ThreadIndex::Group),
    ("thread_position_in_threadgroup", ThreadIndex::InGroup),
    ("threads_per_threadgroup", ThreadIndex::GroupSize),
    ("threadgroups_per_grid", ThreadIndex::Groups),
    ("thread_index_in_threadgroup", ThreadIndex::FlatInGroup),
    ("thread_index_in_simdgroup", ThreadIndex::Lane),
    ("simdgroup_index_in_threadgroup", ThreadIndex::Simdgroup),
    ("simdgroups_per_threadgroup", ThreadIndex::Simdgroups),
];

/// `text` follows the word `kernel`.
fn kernel(file: &str, text: &str, structs: &[Struct]) -> Result<Kernel, ShaderError> {
    let bad = |found: &str, expected: &str| error(file, "(unnamed)", found, expected);
    let line = || text.lines().next().unwrap_or_default().trim();
    let Some(("void", rest)) = name(text) else { return Err(bad(line(), "`kernel void name(...)`")) };
    let Some((kernel, rest)) = name(rest) else { return Err(bad(line(), "a name after `kernel void`")) };
    let Some((list, _)) = bracketed(rest.trim_start(), '(', ')') else {
        return Err(error(file, kernel, rest.lines().next().unwrap_or_default(), "arguments in parentheses"));
    };
    let arguments: Vec<Argument> = split_list(list)
        .into_iter()
        .map(|text| argument(text, structs).map_err(|expected| error(file, kernel, text, &expected)))
        .collect::<Result<_, _>>()?;
    let kernel = Kernel { name: kernel.into(), file: file.into(), arguments };
    let table: Vec<usize> = kernel.table().iter().filter_map(|a| a.index()).collect();
    if !table.iter().copied().eq(0..table.len()) {
        return Err(error(file, &kernel.name, &format!("{table:?}"), "buffer indices 0, 1, 2, ... each once"));
    }
    Ok(kernel)
}

fn argument(text: &str, structs: &[Struct]) -> Result<Argument, String> {
    let Some((declared, attribute)) = text.split_once("[[") else { return Err("an attribute in [[ ]]".into()) };
    let attribute = attribute.trim_end().strip_suffix("]]").ok_or("an attribute that ends in ]]")?.trim();
    let declared = declared.trim_end();
    let start = declared.rfind(|c: char| !(c.is_alphanumeric() || c == '_')).map_or(0, |i| i + 1);
    let (of, name) = (declared[..start].trim(), declared[start..].to_owned());
    let Some(index) = attribute.strip_prefix("buffer(").and_then(|a| a.strip_suffix(')')) else {
        let width = match of {
            "uint" => 1,
            "uint2" => 2,
            "uint3" => 3,
            _ => return Err("uint, uint2 or uint3 for a thread's place".into()),
        };
        let place = PLACES.iter().find(|(name, _)| *name == attribute).ok_or("a thread's place that kernelgen knows")?.1;
        return Ok(Argument::Thread { place, width });
    };
    let index = index.trim().parse().map_err(|_| "a number as buffer index".to_owned())?;
    if let Some(of) = of.strip_prefix("constant ").and_then(|of| of.strip_suffix('&')) {
        let of = field_type(of.trim(), structs).ok_or("a declared struct of 4-byte fields, uint, int or float as constant")?;
        return Ok(Argument::Constant { index, name, of });
    }
    let of = of
        .strip_prefix("device ")
        .and_then(|of| of.strip_suffix('*'))
        .ok_or("`device const T*`, `device T*` or `constant T&`")?;
    let (element, role) = match of.trim().strip_prefix("const ") {
        Some(element) => (element, Role::Input),
        None => (of, Role::Output),
    };
    Ok(Argument::Buffer { index, name, element: element.trim().into(), role })
}

fn field_type(name: &str, structs: &[Struct]) -> Option<FieldType> {
    match name {
        "uint" => Some(FieldType::Uint),
        "int" => Some(FieldType::Int),
        "float" => Some(FieldType::Float),
        _ => structs.iter().any(|s| s.name == name).then(|| FieldType::Struct(name.into())),
    }
}

/// The structs that consist of 4-byte fields; others are the shaders' own affair.
fn structs(text: &str, found: &mut Vec<Struct>) {
    for at in words(text, "struct") {
        let Some((name, rest)) = name(&text[at + "struct".len()..]) else { continue };
        let Some((body, _)) = bracketed(rest.trim_start(), '{', '}') else { continue };
        let fields = body.split(';').map(str::trim).filter(|f| !f.is_empty()).map(|field| {
            let (of, name) = field.rsplit_once(char::is_whitespace)?;
            let plain = name.chars().all(|c| c.is_alphanumeric() || c == '_');
            plain.then_some(())?;
            Some(Field { name: name.into(), of: field_type(of.trim(), found)? })
        });
        if let Some(fields) = fields.collect::<Option<Vec<_>>>() {
            found.push(Struct { name: name.into(), fields });
        }
    }
}

fn size(line: &str) -> Option<Size> {
    let mut parts = line.trim().strip_prefix("#define ")?.split_whitespace();
    let (name, value) = (parts.next()?, parts.next()?);
    let value = value.strip_suffix('u')?.parse().ok()?;
    parts.next().is_none().then(|| Size { name: name.into(), value })
}

fn error(file: &str, kernel: &str, found: &str, expected: &str) -> ShaderError {
    let found = found.split_whitespace().collect::<Vec<_>>().join(" ");
    ShaderError::Kernel { file: file.into(), kernel: kernel.into(), found, expected: expected.into() }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
