//! Loading by the fast engine: whole and sharded checkpoints give the same bits, broken ones give one sentence that names the
//! file and the tensor.

use crate::fast_models::*;
use fast::{Engine, FastError, LoadOptions};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A tensor as it will be written.
#[derive(Clone)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}

type Tensors = BTreeMap<String, Stored>;

fn tensors() -> Tensors {
    let bytes = fs::read(fixture_folder().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let stored = |view: TensorView| Stored { dtype: view.dtype(), shape: view.shape().to_vec(), data: view.data().to_vec() };
    file.tensors().into_iter().map(|(name, view)| (name, stored(view))).collect()
}

fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, t)| (name, TensorView::new(t.dtype, t.shape.clone(), &t.data).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A folder with the fixture's config and nothing else.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixture_folder().join("config.json"), folder.path().join("config.json")).unwrap();
    folder
}

fn load(folder: &Path) -> Result<Engine, FastError> {
    Engine::load(folder, &LoadOptions { threads: 1, ..Default::default() })
}

fn refusal(change: impl FnOnce(&mut Tensors)) -> String {
    let folder = folder();
    let mut tensors = tensors();
    change(&mut tensors);
    write(&folder.path().join("model.safetensors"), &tensors);
    load(folder.path()).map(|_| ()).unwrap_err().to_string()
}

const DOWN: &str = "model.language_model.layers.2.mlp.down_proj.weight";

#[test]
fn shards_give_the_bits_of_one_file() {
    let folder = folder();
    let all = tensors();
    let mut index = serde_json::Map::new();
    let names: Vec<&String> = all.keys().collect();
    for (i, part) in names.chunks(names.len().div_ceil(3)).enumerate() {
        let file = format!("model.safetensors-{:05}-of-00003.safetensors", i + 1);
        let shard: Tensors = part.iter().map(|&name| (name.clone(), all[name].clone())).collect();
        write(&folder.path().join(&file), &shard);
        index.extend(part.iter().map(|&name| (name.clone(), file.clone().into())));
    }
    let index = serde_json::json!({ "weight_map": index });
    fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let prompt = fixture_ids(&["short12"]);
    let sharded = load(folder.path()).unwrap();
    assert_eq!(number_bits(&sharded.logits(&prompt).unwrap()), number_bits(&fixture(1).logits(&prompt).unwrap()));
    assert_eq!(sharded.drafters(), fixture(1).drafters());
}

#[test]
fn missing_tensors_are_named() {
    let error = refusal(|t| drop(t.remove(DOWN)));
    assert!(error.contains(&format!("tensor {DOWN} is missing")), "{error}");
    let error = refusal(|t| drop(t.remove("lm_head.weight")));
    assert!(error.contains("tensor lm_head.weight is missing"), "{error}");
}

#[test]
fn shapes_types_and_numbers_are_checked() {
    let error = refusal(|t| t.get_mut(DOWN).unwrap().shape.reverse());
    assert!(
        error.contains("model.safetensors") && error.ends_with(&format!("tensor {DOWN} has shape [192, 64], expected [64, 192]")),
        "{error}"
    );
    let error = refusal(|t| t.get_mut(DOWN).unwrap().data[6..8].copy_from_slice(&half::bf16::NAN.to_le_bytes()));
    assert!(error.ends_with(&format!("tensor {DOWN} has NaN at element 3, expected finite numbers only")), "{error}");
    let error = refusal(|t| t.get_mut(DOWN).unwrap().dtype = Dtype::I16);
    assert!(error.contains(&format!("tensor {DOWN} has number type I16")), "{error}");
    let codes =
        |t: &mut Tensors| *t.get_mut(DOWN).unwrap() = Stored { dtype: Dtype::I8, shape: vec![64, 192], data: vec![1; 64 * 192] };
    let error = refusal(codes);
    assert!(error.contains(&format!("tensor {DOWN}.scale is missing")), "{error}");
}

#[test]
fn eight_bit_codes_equal_the_weights_they_stand_for() {
    let scales: Vec<half::bf16> = (0..64 * 3).map(|i| half::bf16::from_f32(0.001 + 0.0001 * (i % 7) as f32)).collect();
    let codes: Vec<i8> = (0..64 * 192).map(|i| ((i * 37) % 255 - 127) as i8).collect();
    let weights = codes.iter().enumerate().map(|(i, &c)| f32::from(c) * scales[i / 192 * 3 + i % 192 / 64].to_f32());
    let exact = Stored { dtype: Dtype::F32, shape: vec![64, 192], data: weights.flat_map(|w| w.to_le_bytes()).collect() };
    let scale = Stored { dtype: Dtype::BF16, shape: vec![64, 3], data: scales.iter().flat_map(|s| s.to_le_bytes()).collect() };
    let coded = Stored { dtype: Dtype::I8, shape: vec![64, 192], data: codes.iter().map(|&c| c as u8).collect() };
    let prompt = fixture_ids(&["prompt64"]);
    let logits = |change: &dyn Fn(&mut Tensors)| {
        let folder = folder();
        let mut tensors = tensors();
        change(&mut tensors);
        write(&folder.path().join("model.safetensors"), &tensors);
        number_bits(&load(folder.path()).unwrap().logits(&prompt).unwrap())
    };
    let from_floats = logits(&|t| drop(t.insert(DOWN.into(), exact.clone())));
    let from_codes = logits(&|t| {
        t.insert(DOWN.into(), coded.clone());
        t.insert(format!("{DOWN}.scale"), scale.clone());
    });
    assert!(from_floats == from_codes);
}

#[test]
fn files_that_are_not_there_or_not_models_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = load(folder.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("config.json"), "{error}");
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let error = load(folder.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("model_type is missing"), "{error}");
    fs::copy(fixture_folder().join("config.json"), folder.path().join("config.json")).unwrap();
    let error = load(folder.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("model.safetensors"), "{error}");
    fs::write(folder.path().join("model.safetensors"), [255; 64]).unwrap();
    let error = load(folder.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("model.safetensors: a header of"), "{error}");
}
