//! The shaders as CUDA for NVRTC: a stand-in for Metal's library, the shaders' text without attributes, and one entry per
//! kernel, `straw_NAME`, whose parameters are the argument table in order. Knows nothing of devices.

use crate::parse::{Argument, Role, Shaders, ThreadIndex};
use std::fmt::Write;

const PRELUDE: &str = include_str!("cuda/prelude.cuh");

/// One translation unit; functions without a qualifier are meant for the device (`--device-as-default-execution-space`).
pub fn cuda_source(shaders: &Shaders) -> String {
    let mut out = format!("{PRELUDE}\n");
    for (file, text) in &shaders.files {
        let _ = writeln!(out, "#line 1 \"{file}\"");
        for line in text.split_inclusive('\n') {
            out += if line.trim_start().starts_with("#include") { "\n" } else { line };
        }
        out.push('\n');
    }
    out = without_attributes(&out);
    for kernel in &shaders.kernels {
        let parameters: Vec<String> = kernel.table().into_iter().filter_map(parameter).collect();
        let arguments: Vec<String> = kernel.arguments.iter().map(argument).collect();
        let _ = writeln!(
            out,
            "extern \"C\" __global__ void straw_{name}({}) {{ {name}({}); }}",
            parameters.join(", "),
            arguments.join(", "),
            name = kernel.name
        );
    }
    out
}

fn without_attributes(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find("[[") {
        let Some(end) = rest[start..].find("]]") else { break };
        out += &rest[..start];
        rest = &rest[start + end + 2..];
    }
    out + rest
}

fn parameter(argument: &Argument) -> Option<String> {
    match argument {
        Argument::Buffer { index, element, role: Role::Input, .. } => Some(format!("const {element}* b{index}")),
        Argument::Buffer { index, element, role: Role::Output, .. } => Some(format!("{element}* b{index}")),
        Argument::Constant { index, of, .. } => Some(format!("{} b{index}", of.shader_name())),
        Argument::Thread { .. } => None,
    }
}

fn argument(argument: &Argument) -> String {
    let (place, width) = match argument {
        Argument::Buffer { index, .. } | Argument::Constant { index, .. } => return format!("b{index}"),
        Argument::Thread { place, width } => (place, width),
    };
    let flat = "(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z))";
    let of = |axis: char| match place {
        ThreadIndex::InGrid => format!("blockIdx.{axis} * blockDim.{axis} + threadIdx.{axis}"),
        ThreadIndex::Group => format!("blockIdx.{axis}"),
        ThreadIndex::InGroup => format!("threadIdx.{axis}"),
        ThreadIndex::GroupSize => format!("blockDim.{axis}"),
        ThreadIndex::Groups => format!("gridDim.{axis}"),
        ThreadIndex::FlatInGroup => flat.into(),
        ThreadIndex::Lane => format!("({flat} % 32u)"),
        ThreadIndex::Simdgroup => format!("({flat} / 32u)"),
        ThreadIndex::Simdgroups => "((blockDim.x * blockDim.y * blockDim.z + 31u) / 32u)".into(),
    };
    match width {
        1 => of('x'),
        2 => format!("make_uint2({}, {})", of('x'), of('y')),
        _ => format!("make_uint3({}, {}, {})", of('x'), of('y'), of('z')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_takes_the_table_and_passes_the_parameters() {
        let text = "struct A { uint n; };\nkernel void f(uint2 at [[thread_position_in_grid]], constant A& a [[buffer(1)]],\n\
                    device const float* x [[buffer(0)]]) {}";
        let shaders = Shaders::parse(vec![("f.metal".into(), text.into())]).unwrap();
        let cuda = cuda_source(&shaders);
        assert!(!cuda.contains("[["));
        let entry = cuda.lines().last().unwrap();
        assert!(entry.starts_with("extern \"C\" __global__ void straw_f(const float* b0, A b1) { f(make_uint2("), "{entry}");
        assert!(entry.ends_with(", b1, b0); }"), "{entry}");
    }
}
