//! Recordings survive whatever stops them: the bytes of the whole file do not depend on where.

use super::*;
use sim::{AcceptanceModel, Shape, SyntheticTrace};

fn trace() -> Trace {
    let law = AcceptanceModel::constant(0.7).unwrap();
    let shape = Shape::chain(4);
    SyntheticTrace { model: &law, shape: &shape, prompts: 5, tokens: 12, dense: false, seed: 3 }.draw().unwrap()
}

fn record(path: &Path, trace: &Trace, prompts: usize) -> usize {
    let Start::From(mut recording, next) = Recording::start(path, trace.header()).unwrap() else { panic!("not begun") };
    let all = trace.by_prompt();
    for rounds in &all[next..prompts] {
        recording.prompt(&rounds.iter().map(|&r| r.clone()).collect::<Vec<_>>()).unwrap();
    }
    if prompts == all.len() {
        recording.finish().unwrap();
    }
    next
}

#[test]
fn a_recording_stopped_at_any_byte_ends_with_the_same_bytes() {
    let trace = trace();
    for name in ["t.jsonl", "t.jsonl.zst"] {
        let dir = tempfile::tempdir().unwrap();
        let whole = dir.path().join(name);
        record(&whole, &trace, 5);
        assert_eq!(read(&whole).unwrap(), trace);
        let bytes = fs::read(&whole).unwrap();
        let stopped = dir.path().join(format!("stopped-{name}"));
        let mut resumed = 0;
        for cut in (bytes.len() / 3..=bytes.len()).step_by(bytes.len() / 23) {
            fs::write(with_ending(&stopped, ".partial"), &bytes[..cut]).unwrap();
            resumed = record(&stopped, &trace, 5);
            assert!(fs::read(&stopped).unwrap() == bytes, "{name} cut at {cut}");
            fs::remove_file(&stopped).unwrap();
        }
        assert!(resumed >= 3, "{name}: only {resumed} prompts were kept");
    }
}

#[test]
fn a_whole_file_is_left_alone_and_another_recording_is_not_touched() {
    let trace = trace();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.jsonl");
    record(&path, &trace, 5);
    assert!(matches!(Recording::start(&path, trace.header()).unwrap(), Start::Complete));
    let other = TraceHeader { max_tokens: Some(99), ..trace.header().clone() };
    let refused = Recording::start(&path, &other).err().unwrap().to_string();
    assert!(refused.ends_with("is another recording (delete it, or choose another --out)"), "{refused}");
    let part = dir.path().join("p.jsonl");
    record(&part, &trace, 2);
    assert!(Recording::start(&part, &other).is_err());
    assert_eq!(record(&part, &trace, 5), 1, "the last prompt seen may be cut, so it is recorded again");
}
