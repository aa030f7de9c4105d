//! Damaged and forged files: each gets a sentence that names the file and the tensor, none a panic or a large allocation.

use super::*;
use proptest::{prelude::*, test_runner::RngSeed};
use serde_json::json;

/// A file from a JSON header and its data.
fn file(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A checkpoint and the folder that it reads from.
type Opened = (Checkpoint, tempfile::TempDir);

fn open(bytes: &[u8]) -> Result<Opened, ReferenceError> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(SINGLE), bytes).unwrap();
    Ok((Checkpoint::open(folder.path())?, folder))
}

/// The sentence after the folder's name.
fn sentence<T>(result: Result<T, ReferenceError>) -> String {
    let text = result.map(|_| ()).unwrap_err().to_string();
    text[text.find("model.safetensors").unwrap_or(0)..].to_owned()
}

fn one(dtype: &str, shape: Value, offsets: Value, data: &[u8]) -> Result<Opened, ReferenceError> {
    open(&file(&json!({"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}), data))
}

#[test]
fn headers_that_lie_about_their_length_are_refused() {
    let good = file(&json!({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}), &[0; 4]);
    assert!(open(&good).is_ok());
    for length in [0, good.len() as u64, 1 << 63, u64::MAX] {
        let mut forged = good.clone();
        forged[..8].copy_from_slice(&length.to_le_bytes());
        let expected = format!("model.safetensors: a header of {length} bytes, expected 1 to {} bytes of header", good.len() - 8);
        assert_eq!(sentence(open(&forged)), expected);
    }
    assert_eq!(
        sentence(open(&good[..5])),
        "model.safetensors: 5 bytes, expected at least the 8 bytes of a safetensors header length"
    );
    assert!(sentence(open(&file(&json!([1]), &[]))).contains("a header that is no JSON object"));
    let text = [&5u64.to_le_bytes()[..], b"hello"].concat();
    assert!(sentence(open(&text)).contains("a header that is no JSON ("));
}

#[test]
fn tensors_that_do_not_fit_their_bytes_are_refused_by_name() {
    let cases = [
        (
            one("F32", json!([2]), json!([0, 8]), &[0; 7]),
            "ends at byte 8 of the data, expected at most 7 (is the file truncated?)",
        ),
        (one("F32", json!([3]), json!([0, 8]), &[0; 8]), "has 8 bytes, expected 12 bytes for F32 [3]"),
        (
            one("F32", json!([1u64 << 42, (1u64 << 42) + 1]), json!([0, 8]), &[0; 8]),
            "has 8 bytes, expected more bytes than can be counted for F32 [4398046511104, 4398046511105]",
        ),
        (one("F32", json!([2]), json!([8, 0]), &[0; 8]), "has no usable data_offsets, expected two rising whole numbers"),
        (one("F32", json!([-2]), json!([0, 8]), &[0; 8]), "has no usable shape, expected a list of whole numbers"),
        (open(&file(&json!({"w": 3}), &[])), "is no object in the header, expected dtype, shape, data_offsets"),
    ];
    for (result, expected) in cases {
        assert_eq!(sentence(result), format!("model.safetensors: tensor w {expected}"));
    }
}

#[test]
fn what_a_model_asks_for_must_be_there_finite_and_of_that_shape() {
    let nan = [1.0f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat();
    let (tensors, _folder) = one("F32", json!([2]), json!([0, 8]), &nan).unwrap();
    assert_eq!(sentence(tensors.vector("w", 2)), "model.safetensors: tensor w holds NaN at element 1, expected finite values");
    assert_eq!(sentence(tensors.vector("w", 3)), "model.safetensors: tensor w has shape [2], expected [3]");
    assert!(sentence(tensors.vector("v", 3)).ends_with("tensor v is missing, expected it in one of the safetensors files"));
    let (unknown, _folder) = one("F12", json!([2]), json!([0, 3]), &[0; 3]).unwrap();
    assert_eq!(
        sentence(unknown.vector("w", 2)),
        "model.safetensors: tensor w has type F12, expected BF16, F16, F32, F64 or codes"
    );
}

#[test]
fn all_number_types_give_their_exact_value() {
    let value = -1.5f32;
    let bytes = [
        ("BF16", bf16::from_f32(value).to_le_bytes().to_vec()),
        ("F16", f16::from_f32(value).to_le_bytes().to_vec()),
        ("F32", value.to_le_bytes().to_vec()),
        ("F64", f64::from(value).to_le_bytes().to_vec()),
    ];
    for (dtype, bytes) in bytes {
        let (tensors, _folder) = one(dtype, json!([1]), json!([0, bytes.len()]), &bytes).unwrap();
        assert_eq!(tensors.vector("w", 1).unwrap()[0], -1.5, "{dtype}");
    }
}

/// A quantised `[1, 65]` matrix: the 65th input has a scale of its own.
fn quantised(codes: [i8; 65], with_scales: bool) -> Opened {
    let scales: Vec<u8> = [0.5f32, 0.25].iter().flat_map(|&s| bf16::from_f32(s).to_le_bytes()).collect();
    let mut header = json!({"w": {"dtype": "I8", "shape": [1, 65], "data_offsets": [0, 65]}});
    if with_scales {
        header["w.scale"] = json!({"dtype": "BF16", "shape": [1, 2], "data_offsets": [65, 69]});
    }
    open(&file(&header, &[&codes.map(|c| c as u8)[..], &scales].concat())).unwrap()
}

#[test]
fn a_quantised_weight_is_scale_times_code() {
    let mut codes = [0i8; 65];
    (codes[0], codes[63], codes[64]) = (127, -127, 3);
    let (tensors, _folder) = quantised(codes, true);
    let weight = tensors.matrix("w", 1, 65).unwrap();
    assert_eq!((weight[[0, 0]], weight[[0, 1]], weight[[0, 63]], weight[[0, 64]]), (63.5, 0.0, -63.5, 0.75));
    let (tensors, _folder) = quantised(codes, false);
    assert!(sentence(tensors.matrix("w", 1, 65)).contains("tensor w.scale is missing"));
    codes[7] = -128;
    let (tensors, _folder) = quantised(codes, true);
    assert!(sentence(tensors.matrix("w", 1, 65)).contains("tensor w has code -128 at [0, 7], expected -127 to 127"));
}

/// A file of named tensors.
fn tensors(list: &[(&str, &str, Vec<usize>, Vec<u8>)]) -> Opened {
    let (mut header, mut data) = (json!({}), Vec::new());
    for (name, dtype, shape, bytes) in list {
        header[name] = json!({"dtype": dtype, "shape": shape, "data_offsets": [data.len(), data.len() + bytes.len()]});
        data.extend(bytes);
    }
    open(&file(&header, &data)).unwrap()
}

fn scales(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&s| bf16::from_f32(s).to_le_bytes()).collect()
}

/// Codes 3 and 12 with zero 5, then a second group of one input with zero 9; 65 inputs, so the last byte is half used.
#[test]
fn a_four_bit_weight_is_scale_times_code_minus_zero() {
    let mut codes = vec![0x55u8; 33];
    (codes[0], codes[32]) = (0xc3, 0xf1);
    let parts = [
        ("w", "U8", vec![1, 33], codes.clone()),
        ("w.scale", "BF16", vec![1, 2], scales(&[0.5, 0.25])),
        ("w.zero", "U8", vec![1, 1], vec![0x95]),
    ];
    let (found, _folder) = tensors(&parts);
    let weight = found.matrix("w", 1, 65).unwrap();
    assert_eq!((weight[[0, 0]], weight[[0, 1]], weight[[0, 2]], weight[[0, 64]]), (-1.0, 3.5, 0.0, -2.0));
    assert!(sentence(found.tensor("w", [1, 33])).contains("tensor w has type U8, expected BF16, F16, F32, F64 or codes"));
    let (found, _folder) = tensors(&parts[..2]);
    assert!(sentence(found.matrix("w", 1, 65)).contains("tensor w.zero is missing"));
    let wide = [parts[0].clone(), parts[1].clone(), ("w.zero", "I8", vec![1, 1], vec![0x15])];
    let (found, _folder) = tensors(&wide);
    assert!(sentence(found.matrix("w", 1, 65)).contains("tensor w.zero has type I8, expected U8, two zero points a byte"));
}

/// Stored is `(w D) H / 32`; the 33rd input lies outside the full block and is stored as it is.
#[test]
fn the_hadamard_transform_is_undone_where_signs_are_stored() {
    let signs: Vec<i8> = (0..33).map(|i| if i % 3 == 1 && i < 32 { -1 } else { 1 }).collect();
    let stored: Vec<i8> = (0..33).map(|i| (7 * i % 101) as i8 - 50).collect();
    let bytes = |v: &[i8]| v.iter().map(|&b| b as u8).collect::<Vec<u8>>();
    let list = [
        ("w", "I8", vec![1, 33], bytes(&stored)),
        ("w.scale", "BF16", vec![1, 1], scales(&[0.5])),
        ("plain", "F32", vec![1, 33], (0..33).flat_map(|i| (i as f32).to_le_bytes()).collect()),
        ("hadamard.signs.33", "I8", vec![33], bytes(&signs)),
    ];
    let (found, _folder) = tensors(&list);
    let weight = found.matrix("w", 1, 33).unwrap();
    // Transformed again it is what was stored.
    let mut x: Vec<f64> = (0..32).map(|i| weight[[0, i]] * f64::from(signs[i]) / 32.0).collect();
    for stride in [1, 2, 4, 8, 16] {
        for i in (0..32).filter(|i| i & stride == 0) {
            (x[i], x[i + stride]) = (x[i] + x[i + stride], x[i] - x[i + stride]);
        }
    }
    assert!(x.iter().zip(&stored).all(|(x, &s)| *x == 0.5 * f64::from(s)));
    assert_eq!(weight[[0, 32]], 0.5 * f64::from(stored[32]));
    assert_eq!(found.matrix("plain", 1, 33).unwrap()[[0, 5]], 5.0, "what has no codes is not transformed");
    assert_eq!(found.matrix_rows("w", (1, 33), &[0, 0]).unwrap().row(1), weight.row(0));
    let mut spoiled = list.clone();
    spoiled[3].3[4] = 0;
    let (found, _folder) = tensors(&spoiled);
    assert!(sentence(found.matrix("w", 1, 33)).contains("tensor hadamard.signs.33 holds 0 at element 4, expected 1 or -1"));
}

#[test]
fn the_configuration_says_how_many_inputs_share_a_scale() {
    let (found, folder) = tensors(&[("w", "I8", vec![1, 4], vec![2; 4]), ("w.scale", "BF16", vec![1, 2], scales(&[1.0, 3.0]))]);
    assert!(sentence(found.matrix("w", 1, 4)).contains("tensor w.scale has shape [1, 2], expected [1, 1]"));
    let config = folder.path().join("config.json");
    fs::write(&config, r#"{"quantization_config": {"group_size": 2}}"#).unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().matrix("w", 1, 4).unwrap().row(0).to_vec(), [2.0, 2.0, 6.0, 6.0]);
    fs::write(&config, r#"{"quantization_config": {"group_size": 0}}"#).unwrap();
    let text = Checkpoint::open(folder.path()).map(|_| ()).unwrap_err().to_string();
    assert!(text.ends_with("config.json: group_size 0, expected a whole number of at least 1"), "{text}");
}

#[test]
fn shards_are_found_through_the_index_and_stay_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    for (name, value) in [("a", 1.0f32), ("b", 2.0)] {
        let header = json!({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}});
        write(&format!("shard-{name}.safetensors"), &file(&header, &value.to_le_bytes()));
    }
    write(INDEX, br#"{"weight_map": {"a": "shard-a.safetensors", "b": "shard-b.safetensors"}}"#);
    let weights = Checkpoint::open(folder.path()).unwrap();
    assert_eq!((weights.vector("a", 1).unwrap()[0], weights.vector("b", 1).unwrap()[0]), (1.0, 2.0));
    for (index, found) in [
        (r#"{"weight_map": {"a": "../shard-a.safetensors"}}"#, "outside the folder"),
        (r#"{"weight_map": {"a": 3}}"#, "tensor a names no file"),
        (r#"{"weight_map": {}}"#, "an empty weight_map"),
        ("{}", "no weight_map"),
        (r#"{"weight_map": {"a": "absent.safetensors"}}"#, "absent.safetensors"),
    ] {
        write(INDEX, index.as_bytes());
        let text = Checkpoint::open(folder.path()).map(|_| ()).unwrap_err().to_string();
        assert!(text.contains(found), "{index}: {text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..Default::default() })]
    /// Any bytes, and any one byte of a good file changed: an answer, never a panic.
    #[test]
    fn no_bytes_can_panic(noise in prop::collection::vec(any::<u8>(), 0..100), place in 0usize..200, byte in any::<u8>()) {
        let _ = open(&noise);
        let mut bytes = file(&json!({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}), &[1; 24]);
        let place = place % bytes.len();
        bytes[place] = byte;
        if let Ok((weights, _folder)) = open(&bytes) {
            let _ = weights.matrix("w", 2, 3);
        }
    }
}
