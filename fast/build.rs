//! Reads the shaders and writes their bindings and their other languages into the build folder.

use kernelgen::Shaders;
use std::path::Path;
use std::{env, fs};

/// Files that others build on: arithmetic, the layouts of matrices and caches.
const FIRST: [&str; 3] = ["prelude.metal", "rows.metal", "kv.metal"];

fn main() {
    println!("cargo::rerun-if-changed=src/kernels");
    if let Err(error) = generate() {
        // Cargo shows it as the reason of the failure.
        println!("cargo::error={error}");
    }
}

fn generate() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new("src/kernels");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "metal") {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.push((name, fs::read_to_string(&path)?));
        }
    }
    files.sort_by_key(|(name, _)| (FIRST.iter().position(|first| first == name).unwrap_or(FIRST.len()), name.clone()));
    let shaders = Shaders::parse(files)?;
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);
    fs::write(out.join("bindings.rs"), kernelgen::rust_bindings(&shaders)?)?;
    fs::write(out.join("emulator.cpp"), kernelgen::emulator_source(&shaders)?)?;
    fs::write(out.join("kernels.cu"), kernelgen::cuda_source(&shaders))?;
    fs::write(out.join("kernels.metal"), shaders.files.iter().map(|(_, text)| text.as_str()).collect::<String>())?;
    Ok(())
}
