//! The host side of the shaders as Rust: a struct per kernel whose fields are its arguments, each an input, an output or
//! constants of the right type; the structs of constants; the sizes. Knows nothing of devices: the text refers to
//! `In`, `Out`, `Bound`, `Element`, `Kernel`, `Gpu` and `GpuError` of the module that includes it.

use crate::parse::{Argument, FieldType, Kernel, Role, ShaderError, Shaders, Struct};
use std::fmt::Write;

/// The text of a module. Errors: a buffer's element type that has no Rust counterpart.
pub fn rust_bindings(shaders: &Shaders) -> Result<String, ShaderError> {
    let mut out = String::from("// Written by kernelgen from the shaders.\n\n");
    for size in &shaders.sizes {
        let _ = writeln!(out, "/// As the shaders define it.\npub const {}: u32 = {};", size.name, size.value);
    }
    shaders.structs.iter().for_each(|s| constants(&mut out, s));
    for (i, kernel) in shaders.kernels.iter().enumerate() {
        binding(&mut out, i, kernel, &shaders.structs)?;
    }
    let _ = writeln!(out, "/// All kernels.\npub static KERNELS: &[Kernel] = &[");
    for (i, kernel) in shaders.kernels.iter().enumerate() {
        let _ = writeln!(out, "    Kernel {{ name: {:?}, file: {:?}, index: {i} }},", kernel.name, kernel.file);
    }
    out += "];\n";
    Ok(out)
}

fn constants(out: &mut String, s: &Struct) {
    let name = &s.name;
    let _ = writeln!(
        out,
        "/// Constants, as the shaders declare them.\n#[derive(Clone, Copy, Debug, PartialEq)]\npub struct {name} {{"
    );
    for field in &s.fields {
        let _ = writeln!(out, "    /// `{0}`\n    pub {0}: {1},", field.name, rust_field(&field.of));
    }
    let names: Vec<&str> = s.fields.iter().map(|f| f.name.as_str()).collect();
    let sum = |text: fn(&str) -> String| s.fields.iter().map(|f| text(rust_field(&f.of))).collect::<Vec<_>>().join(" + ");
    let _ = writeln!(
        out,
        "}}\nimpl Element for {name} {{\n    const BYTES: usize = {};\n    fn put(&self, out: &mut Vec<u8>) {{",
        sum(|of| format!("<{of} as Element>::BYTES"))
    );
    names.iter().for_each(|n| {
        let _ = writeln!(out, "        self.{n}.put(out);");
    });
    let _ = writeln!(
        out,
        "    }}\n    fn get(bytes: &[u8]) -> Self {{\n        let mut at = 0;\n        let mut next = |n| {{ at += n; at - n }};"
    );
    for field in &s.fields {
        let of = rust_field(&field.of);
        let _ = writeln!(out, "        let {} = <{of} as Element>::get(&bytes[next(<{of} as Element>::BYTES)..]);", field.name);
    }
    let _ = writeln!(out, "        Self {{ {} }}\n    }}\n}}", names.join(", "));
}

fn binding(out: &mut String, index: usize, kernel: &Kernel, structs: &[Struct]) -> Result<(), ShaderError> {
    let (mut fields, mut bound) = (String::new(), Vec::new());
    for argument in kernel.table() {
        match argument {
            Argument::Buffer { name, element, role, .. } => {
                let of = rust_element(element, structs).ok_or_else(|| ShaderError::Kernel {
                    file: kernel.file.clone(),
                    kernel: kernel.name.clone(),
                    found: format!("{element}* {name}"),
                    expected: "an element type that kernelgen knows".into(),
                })?;
                let (of_role, qualifier) = match role {
                    Role::Input => ("In", "const "),
                    Role::Output => ("Out", ""),
                };
                let _ = writeln!(fields, "    /// `device {qualifier}{element}*`\n    pub {name}: {of_role}<'a, {of}>,");
                bound.push(format!("self.{name}.bound({name:?})"));
            }
            Argument::Constant { name, of, .. } => {
                let _ = writeln!(fields, "    /// `constant {}&`\n    pub {name}: {},", of.shader_name(), rust_field(of));
                bound.push(format!("Bound::constant(&self.{name})"));
            }
            Argument::Thread { .. } => {}
        }
    }
    let name = camel(&kernel.name);
    let _ = writeln!(
        out,
        "/// `kernel void {}` of {}.\n#[derive(Clone, Copy)]\npub struct {name}<'a> {{\n{fields}}}\n\
         impl {name}<'_> {{\n    /// Runs `groups` threadgroups of `threads` threads.\n    \
         pub fn dispatch(self, gpu: &Gpu, groups: [u32; 3], threads: u32) -> Result<(), GpuError> {{\n        \
         gpu.dispatch(&KERNELS[{index}], &[{}], groups, threads)\n    }}\n}}",
        kernel.name,
        kernel.file,
        bound.join(", ")
    );
    Ok(())
}

fn rust_field(of: &FieldType) -> &str {
    match of {
        FieldType::Uint => "u32",
        FieldType::Int => "i32",
        FieldType::Float => "f32",
        FieldType::Struct(name) => name,
    }
}

fn rust_element<'s>(of: &'s str, structs: &[Struct]) -> Option<&'s str> {
    Some(match of {
        "float" => "f32",
        "uint" => "u32",
        "uint4" => "[u32; 4]",
        "int" => "i32",
        "char" => "i8",
        "uchar" => "u8",
        "ushort" => "u16",
        "Bf16" => "half::bf16",
        "F16" => "half::f16",
        _ => return structs.iter().any(|s| s.name == of).then_some(of),
    })
}

/// `rms_norm` as `RmsNorm`.
fn camel(name: &str) -> String {
    name.split('_')
        .flat_map(|word| {
            let mut letters = word.chars();
            letters.next().map(|c| c.to_uppercase().chain(letters).collect::<String>())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_a_struct_of_its_arguments() {
        let text = "#define W 8u\nstruct A { uint n; float s; };\nkernel void my_scale(device const Bf16* x [[buffer(0)]],\n\
                    device float* y [[buffer(1)]], constant A& a [[buffer(2)]], uint i [[thread_position_in_grid]]) {}";
        let rust = rust_bindings(&Shaders::parse(vec![("f.metal".into(), text.into())]).unwrap()).unwrap();
        for part in [
            "pub const W: u32 = 8;",
            "pub struct MyScale<'a> {",
            "pub x: In<'a, half::bf16>,",
            "pub y: Out<'a, f32>,",
            "pub a: A,",
            "&[self.x.bound(\"x\"), self.y.bound(\"y\"), Bound::constant(&self.a)]",
            "Kernel { name: \"my_scale\", file: \"f.metal\", index: 0 }",
        ] {
            assert!(rust.contains(part), "{part} in\n{rust}");
        }
        let text = "kernel void f(device double* x [[buffer(0)]]) {}";
        let error = rust_bindings(&Shaders::parse(vec![("f.metal".into(), text.into())]).unwrap()).unwrap_err();
        assert!(error.to_string().contains("double* x"), "{error}");
    }
}
