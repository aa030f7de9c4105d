//! Forged and damaged headers are refused with a sentence; whole ones are read.

use super::*;
use proptest::prelude::*;

fn file(header: &str, data: usize) -> tempfile::NamedTempFile {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(std::iter::repeat_n(0, data));
    raw(&bytes)
}

fn raw(bytes: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    file
}

fn complaint(file: &tempfile::NamedTempFile) -> String {
    format!("{:#}", Checkpoint::open(file.path()).expect_err("refused")).replace(&file.path().display().to_string(), "FILE")
}

#[test]
fn forged_header_lengths_are_refused() {
    for length in [0u64, 1, 9, 1 << 40, 1 << 63, u64::MAX] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(b"{}      ");
        let text = complaint(&raw(&bytes));
        assert!(text.starts_with(&format!("FILE: header length is {length}, expected 2 to 8")), "{text}");
    }
    assert_eq!(complaint(&raw(b"abc")), "FILE: has 3 bytes, too few for a safetensors header");
}

#[test]
fn headers_that_contradict_their_file_are_refused() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    for (header, data, expected) in [
        (one("F32", "[2]", "[0,8]"), 4, "tensor \"a\" ends at byte"),
        (one("F32", "[2]", "[0,4]"), 4, "tensor \"a\" spans 4 bytes, expected 8 for F32 [2]"),
        (one("F32", "[4398046511105,4398046511105]", "[0,4]"), 4, "which no file can hold"),
        (one("F32", "[2]", "[8,0]"), 8, "which no file can hold"),
        (one("Q9", "[2]", "[0,8]"), 8, "tensor \"a\" has unknown number type \"Q9\""),
        (one("F32", "[1]", "[4,8]"), 8, "tensor \"a\" begins at byte"),
        (one("F32", "[1]", "[0,4]"), 8, "tensors end at byte"),
        (one("F32", "[-1]", "[0,4]"), 4, "tensor \"a\": invalid value"),
        ("[1]".into(), 0, "header is not a JSON object"),
        (r#"{"a":1}"#.into(), 0, "tensor \"a\": invalid type"),
    ] {
        let text = complaint(&file(&header, data));
        assert!(text.contains(expected), "{header}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn rows_come_as_written_and_nan_is_named() {
    let header = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    let plain = bytes.len();
    for value in [1.0f32, -2.0, 3.5, 0.0] {
        bytes.extend(value.to_le_bytes());
    }
    let read = |bytes: &[u8]| {
        let file = raw(bytes);
        let checkpoint = Checkpoint::open(file.path()).unwrap();
        let mut rows = Vec::new();
        checkpoint.rows(checkpoint.entries().next().unwrap(), |_, row| {
            rows.push(row.to_vec());
            Ok(())
        })?;
        anyhow::Ok(rows)
    };
    assert_eq!(read(&bytes).unwrap(), [[1.0, -2.0], [3.5, 0.0]]);
    bytes[plain + 8..plain + 12].copy_from_slice(&f32::NAN.to_le_bytes());
    let text = format!("{:#}", read(&bytes).unwrap_err());
    assert!(text.ends_with("tensor \"a\" holds NaN at [1, 0], expected finite numbers"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_can_make_the_reader_panic(header in ".{0,80}", data in prop::collection::vec(any::<u8>(), 0..40), forged in any::<bool>(), length in any::<u64>()) {
        let mut bytes = if forged { length } else { header.len() as u64 }.to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(&data);
        let _ = Checkpoint::open(raw(&bytes).path());
    }
}
