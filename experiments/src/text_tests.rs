//! Streams against decoding at once, and the recorded tokenizer cases of the fixture.

use super::*;
use proptest::prelude::*;

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(name)
}

fn streamed(text: &Text, ids: &[u32]) -> Vec<String> {
    let mut stream = text.stream();
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    pieces
}

#[test]
fn recorded_tokenizer_cases_are_reproduced() {
    let dir = folder("tests/fixtures/qwen35-tiny-a");
    let text = Text::load(&dir).unwrap();
    let recorded: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("reference.json")).unwrap()).unwrap();
    let cases = recorded["tokenizer_cases"].as_array().unwrap();
    assert!(cases.len() >= 4);
    for case in cases {
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(text.encode(case["text"].as_str().unwrap()).unwrap(), ids);
        // The record keeps special tokens; answers leave them out.
        let special = text.markers().filter(|m| m.2);
        let expected = special.fold(case["decoded"].as_str().unwrap().to_owned(), |t, (marker, ..)| t.replace(marker, ""));
        assert_eq!(text.decode(&ids).unwrap(), expected);
        assert_eq!(streamed(&text, &ids).concat(), expected);
    }
}

#[test]
fn a_character_comes_whole_with_its_last_byte() {
    let text = Text::load(&folder("models/straw-tiny")).unwrap();
    let ids = text.encode("a你😀b").unwrap();
    let pieces = streamed(&text, &ids);
    assert_eq!(pieces.concat(), "a你😀b");
    assert!(pieces.iter().all(|p| !p.contains(char::REPLACEMENT_CHARACTER)), "{pieces:?}");
    // The same ids cut inside the emoji: the missing bytes show at the end, and only there.
    let cut = &ids[..ids.len() - 2];
    assert_eq!(streamed(&text, cut).concat(), text.decode(cut).unwrap());
}

#[test]
fn special_and_unknown_ids_have_no_text_but_a_name() {
    let text = Text::load(&folder("models/straw-tiny")).unwrap();
    assert_eq!(text.decode(&[2, 8191 + 1000]).unwrap(), "");
    assert_eq!(text.name(2), "<|im_end|>");
    assert_eq!(text.name(100_000), "#100000");
}

#[test]
fn plain_text_never_becomes_a_control_token() {
    for dir in ["models/straw-tiny", "tests/fixtures/qwen35-tiny-a"] {
        let text = Text::load(&folder(dir)).unwrap();
        for (marker, id, _) in text.markers() {
            let typed = format!("a {marker} b");
            assert!(text.encode(&typed).unwrap().contains(&id), "{dir} {marker}");
            let plain = text.encode_plain(&typed).unwrap();
            assert!(plain.iter().all(|t| text.markers().all(|(_, id, _)| *t != id)), "{dir} {marker}: {plain:?}");
            assert_eq!(text.decode(&plain).unwrap(), typed);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn joined_pieces_are_the_text_decoded_at_once(ids in prop::collection::vec(0u32..320, 0..200)) {
        let text = Text::load(&folder("tests/fixtures/qwen35-tiny-a")).unwrap();
        prop_assert_eq!(streamed(&text, &ids).concat(), text.decode(&ids).unwrap());
    }

    #[test]
    fn mixed_scripts_survive_encoding_and_streaming(words in prop::collection::vec("[a-z 你好世界😀é\n]{1,6}", 0..40)) {
        let text = Text::load(&folder("tests/fixtures/qwen35-tiny-a")).unwrap();
        let whole = words.concat();
        let ids = text.encode(&whole).unwrap();
        prop_assert_eq!(streamed(&text, &ids).concat(), whole);
    }
}

#[test]
fn ten_thousand_mixed_tokens_stream_without_error() {
    let text = Text::load(&folder("models/straw-tiny")).unwrap();
    let ids: Vec<u32> = (0..10_000u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32 % 8192).collect();
    assert_eq!(streamed(&text, &ids).concat(), text.decode(&ids).unwrap());
}
