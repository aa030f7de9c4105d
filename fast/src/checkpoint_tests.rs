//! Broken files: each is refused with a sentence that names the file and the tensor, without panic or large allocation.

use super::*;

/// A file with one tensor `w` of the given header entry and data.
fn file(entry: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{\"w\":{entry}}}");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn open(bytes: &[u8]) -> Result<Checkpoint, FastError> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    Checkpoint::open(folder.path())
}

fn refused(bytes: &[u8], words: &str) {
    let error = match open(bytes) {
        Err(error) => error.to_string(),
        Ok(checkpoint) => match checkpoint.tensor("w").and_then(|t| t.floats()) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("accepted, expected a refusal about {words:?}"),
        },
    };
    assert!(error.contains("model.safetensors") && error.contains(words), "{error}");
}

#[test]
fn forged_lengths_are_refused_without_belief() {
    refused(&[], "0 bytes");
    refused(&[1, 2, 3], "3 bytes");
    refused(&0u64.to_le_bytes(), "header of 0 bytes");
    for length in [1u64 << 63, u64::MAX, 9, 1 << 40] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([b' '; 8]);
        refused(&bytes, &format!("header of {length} bytes"));
    }
    refused(&file("{", &[]), "expected a JSON header");
}

#[test]
fn shapes_and_offsets_must_agree_with_the_bytes_that_are_there() {
    let four = [0u8; 4];
    refused(&file(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,4]}"#, &four), "data offsets [0, 4]");
    refused(&file(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#, &four), "data offsets [0, 8]");
    refused(&file(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#, &four), "data offsets [4, 0]");
    refused(&file(r#"{"dtype":"F32","shape":[4398046511105,4398046511104],"data_offsets":[0,4]}"#, &four), "shape");
    refused(&file(r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#, &four), "no shape");
    refused(&file(r#"{"dtype":"F31","shape":[1],"data_offsets":[0,4]}"#, &four), "number type F31");
    refused(&file(r#"{"dtype":"I32","shape":[1],"data_offsets":[0,4]}"#, &four), "number type I32");
}

#[test]
fn numbers_that_are_not_finite_are_named() {
    let data: Vec<u8> = [1.0f32, f32::NAN].iter().flat_map(|x| x.to_le_bytes()).collect();
    refused(&file(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#, &data), "tensor w has NaN at element 1");
    let data = half::bf16::INFINITY.to_le_bytes();
    refused(&file(r#"{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}"#, &data), "inf at element 0");
    refused(&file(r#"{"dtype":"I8","shape":[1],"data_offsets":[0,1]}"#, &[128]), "code -128 at element 0");
}

#[test]
fn good_tensors_are_read_exactly() {
    let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect();
    let checkpoint = open(&file(r#"{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}"#, &data)).unwrap();
    let tensor = checkpoint.tensor("w").unwrap();
    assert_eq!((&tensor.shape[..], tensor.floats().unwrap()), (&[2, 1][..], vec![1.5, -2.0]));
    let error = tensor.expect_shape(&[1, 2]).unwrap_err().to_string();
    assert!(error.ends_with("tensor w has shape [2, 1], expected [1, 2]"), "{error}");
    let error = checkpoint.tensor("v").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("tensor v is missing"), "{error}");
}

#[test]
fn an_index_cannot_name_files_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    for (index, words) in [
        (r#"{"weight_map":{"w":"../x.safetensors"}}"#, "expected a file name"),
        (r#"{"weight_map":{"w":3}}"#, "expected a file name"),
        (r#"{}"#, "no weight_map"),
        ("[", "expected a JSON index"),
        (r#"{"weight_map":{"w":"gone.safetensors"}}"#, "gone.safetensors"),
    ] {
        fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        let error = Checkpoint::open(folder.path()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn shards_are_found_through_the_index() {
    let folder = tempfile::tempdir().unwrap();
    let data = 3.0f32.to_le_bytes();
    let one = file(r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#, &data);
    fs::write(folder.path().join("model.safetensors-00001-of-00001.safetensors"), one).unwrap();
    let index = r#"{"weight_map":{"w":"model.safetensors-00001-of-00001.safetensors"}}"#;
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.tensor("w").unwrap().floats().unwrap(), [3.0]);
}
