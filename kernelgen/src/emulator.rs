//! The shaders as C++ for the SIMT emulator: machine, stand-in for Metal's library, the shaders' text, and one entry that
//! starts a kernel by its number. Knows nothing of compilers or of how the library is loaded.

use crate::parse::{Argument, ShaderError, Shaders, ThreadIndex};
use crate::text::words;
use std::fmt::Write;

const RUNTIME: &str = include_str!("emulator/runtime.hpp");
const METAL: &str = include_str!("emulator/metal.hpp");

/// One translation unit. It exports
/// `int straw_emulate(uint kernel, void* const* arguments, const uint groups[3], const uint group_size[3], uint seed,
/// uint threads, char* message, size_t room)`, 0 when no rule was broken; kernels count as in [`Shaders::kernels`].
///
/// Errors: a threadgroup array whose declaration is not understood.
pub fn emulator_source(shaders: &Shaders) -> Result<String, ShaderError> {
    let mut out = format!("{RUNTIME}\n{METAL}\n");
    let mut arrays = 0;
    for (file, text) in &shaders.files {
        let _ = writeln!(out, "#line 1 \"{file}\"");
        out += &threadgroup_arrays(file, text, &mut arrays)?;
        out.push('\n');
    }
    out += "#undef thread\n#undef kernel\n";
    let _ = writeln!(out, "static_assert({arrays} <= rt::Arrays);");
    for kernel in &shaders.kernels {
        let arguments: Vec<String> = kernel.arguments.iter().map(argument).collect();
        let name = &kernel.name;
        let _ = writeln!(
            out,
            "static void straw_run_{name}(void* const* b, const rt::Place& at) {{ {name}({}); }}",
            arguments.join(", ")
        );
    }
    let bodies: Vec<String> = shaders.kernels.iter().map(|k| format!("straw_run_{}", k.name)).collect();
    let _ = writeln!(
        out,
        "static const rt::Body straw_bodies[] = {{ {}, nullptr }};\n\
         extern \"C\" __attribute__((visibility(\"default\"))) int straw_emulate(uint kernel_number, void* const* arguments,\n\
         const uint* groups, const uint* size, uint seed, uint threads, char* message, size_t room) {{\n\
         return rt::launch(straw_bodies[kernel_number], arguments, groups, size, seed, threads, message, room);\n}}",
        bodies.join(", ")
    );
    Ok(out)
}

/// `TG_MEM float a[8][9];` becomes a reference into the group's fenced memory; Metal's own header is not included.
fn threadgroup_arrays(file: &str, text: &str, count: &mut usize) -> Result<String, ShaderError> {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let code = line.split("//").next().unwrap_or_default();
        if code.trim_start().starts_with("#include") {
            out.push('\n');
            continue;
        }
        let Some(at) = words(code, "TG_MEM").next().filter(|_| !code.trim_start().starts_with('#')) else {
            out += line;
            continue;
        };
        let declaration = code[at + "TG_MEM".len()..].trim();
        let understood = declaration.strip_suffix(';').and_then(|d| {
            let bracket = d.find('[')?;
            let (of, name) = d[..bracket].trim_end().rsplit_once(char::is_whitespace)?;
            (!d.contains(',')).then_some((of.trim(), name, &d[bracket..]))
        });
        let Some((of, name, sizes)) = understood else {
            return Err(ShaderError::File {
                file: file.into(),
                found: line.trim().into(),
                expected: "one array on one line: `TG_MEM type name[size];`".into(),
            });
        };
        let _ = writeln!(out, "{}auto& {name} = rt::shared<{of}{sizes}>({count});", &code[..at]);
        *count += 1;
    }
    Ok(out)
}

fn argument(argument: &Argument) -> String {
    match argument {
        Argument::Buffer { index, element, role, .. } => {
            let constant = if *role == crate::Role::Input { "const " } else { "" };
            format!("({constant}{element}*)b[{index}]")
        }
        Argument::Constant { index, of, .. } => format!("*(const {}*)b[{index}]", of.shader_name()),
        Argument::Thread { place, width } => {
            let vector = match place {
                ThreadIndex::InGrid => "(at.group * at.group_size + at.in_group)",
                ThreadIndex::Group => "at.group",
                ThreadIndex::InGroup => "at.in_group",
                ThreadIndex::GroupSize => "at.group_size",
                ThreadIndex::Groups => "at.groups",
                ThreadIndex::FlatInGroup => return "at.flat".into(),
                ThreadIndex::Lane => return "at.lane".into(),
                ThreadIndex::Simdgroup => return "at.simdgroup".into(),
                ThreadIndex::Simdgroups => return "at.simdgroups".into(),
            };
            match width {
                1 => format!("{vector}.x"),
                2 => format!("{vector}.xy"),
                _ => vector.into(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threadgroup_arrays_become_fenced_references() {
        let mut count = 3;
        let text = "#ifndef TG_MEM\n  TG_MEM float a[4][N]; // note\n";
        let out = threadgroup_arrays("f", text, &mut count).unwrap();
        assert_eq!(out, "#ifndef TG_MEM\n  auto& a = rt::shared<float[4][N]>(3);\n");
        assert_eq!(count, 4);
        let error = threadgroup_arrays("f", "TG_MEM float a[1], b[2];\n", &mut count).unwrap_err();
        assert!(error.to_string().contains("one array on one line"));
    }
}
