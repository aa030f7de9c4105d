//! Where the model is: `--model`, `STRAW_MODELS`, or the embedded default found from the working directory or the
//! program upwards. Reads the configuration; the engines read the weights.

use anyhow::{Context, Result, bail, ensure};
use specdec::ModelConfig;
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// The model that the repository ships.
const DEFAULT: &str = "straw-tiny";
/// Names the folder of all models, and overrides every other place.
const VARIABLE: &str = "STRAW_MODELS";

/// The folder to use: `asked` if given, else the embedded default.
///
/// Errors: the folder that was asked for holds no model; no default anywhere (the sentence lists where it looked).
pub fn find(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(dir) = asked {
        ensure!(dir.is_dir(), "{}: no such folder (set --model)", dir.display());
        ensure!(dir.join("config.json").is_file(), "{}: has no config.json, so it is not a model (set --model)", dir.display());
        return Ok(dir.to_owned());
    }
    if let Some(models) = env::var_os(VARIABLE) {
        let dir = Path::new(&models).join(DEFAULT);
        ensure!(is_model(&dir), "{}: has no config.json with weights beside it (unset {VARIABLE} or set --model)", dir.display());
        return Ok(dir);
    }
    let places = default_places();
    match places.iter().find(|dir| is_model(dir)) {
        Some(dir) => Ok(dir.clone()),
        None => {
            let list: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
            bail!("the model {DEFAULT} is in none of {} (set --model or {VARIABLE})", list.join(", "))
        }
    }
}

/// Reads and checks the folder's `config.json` and `generation_config.json`.
pub fn config(dir: &Path) -> Result<ModelConfig> {
    let path = dir.join("config.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let generation = fs::read_to_string(dir.join("generation_config.json")).ok();
    ModelConfig::from_json(&text, generation.as_deref()).with_context(|| dir.display().to_string())
}

fn is_model(dir: &Path) -> bool {
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    dir.join("config.json").is_file() && weights.iter().any(|w| dir.join(w).is_file())
}

/// `models/straw-tiny` above the working directory, above the program, and where the program was built.
fn default_places() -> Vec<PathBuf> {
    let start = [env::current_dir().ok(), env::current_exe().ok().and_then(|exe| Some(exe.parent()?.to_owned()))];
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned);
    let above = start.iter().flatten().flat_map(|dir| dir.ancestors().map(Path::to_owned));
    let mut places = Vec::new();
    for root in above.chain(built) {
        let place = root.join("models").join(DEFAULT);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}
