//! `straw generate`: drafting changes nothing a user can see, counts agree with each other, answers end where they should.

use cross_tests::{command, finish, fixture, workspace};
use serde_json::Value;
use std::path::PathBuf;

fn generate(model: &str, args: &[&str]) -> Value {
    let model: PathBuf = if model == "tiny-a" { fixture("qwen35-tiny-a") } else { workspace().join("models").join(model) };
    let run = finish(command().args(["generate", "--json", "--model"]).arg(model).args(args));
    assert_eq!(run.code, Some(0), "{args:?}: {}", run.stderr);
    let document = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {}", run.stdout));
    check_counts(&document);
    document
}

/// Identities that hold for every answer.
fn check_counts(d: &Value) {
    let number = |name: &str| d[name].as_u64().unwrap_or_else(|| panic!("{name} in {d}"));
    let tokens = d["token_ids"].as_array().unwrap().len() as u64;
    assert_eq!(tokens, number("completion_tokens"));
    assert_eq!(tokens, d["logprobs"].as_array().unwrap().len() as u64);
    assert!(d["logprobs"].as_array().unwrap().iter().all(|l| l.as_f64().unwrap() <= 0.0));
    let by_position: Vec<u64> = serde_json::from_value(d["accepted_by_position"].clone()).unwrap();
    assert_eq!(by_position.iter().sum::<u64>(), number("accepted"));
    assert!(by_position.windows(2).all(|w| w[0] >= w[1]) && by_position.first().is_none_or(|&n| n <= number("passes")));
    assert!(number("accepted") <= number("drafted"));
    match d["tokens_per_forward_pass"].as_f64() {
        None => assert_eq!((number("passes"), tokens), (0, 1)),
        Some(tau) => {
            assert!((tau * number("passes") as f64 - (tokens - 1) as f64).abs() < 1e-9, "{d}");
            // Passes emit what was accepted and one more each, except where the answer ended inside a path.
            assert!(tokens > 0 && tokens - 1 <= number("accepted") + number("passes"), "{d}");
        }
    }
    if let Some(budget) = d["budget"].as_u64() {
        assert!(number("drafted") <= budget * number("passes"), "{d}");
    }
    for name in ["ttft_s", "prefill_tokens_per_s", "duration_s", "load_s"] {
        assert!(d[name].as_f64().unwrap() > 0.0, "{name} in {d}");
    }
    assert!(d.get("energy_j").is_none_or(|e| e.as_f64().unwrap() > 0.0), "energy is measured or absent");
}

/// What must not depend on drafting.
fn seen(d: &Value) -> [&Value; 5] {
    ["text", "token_ids", "logprobs", "finish_reason", "prompt_tokens"].map(|name| &d[name])
}

#[test]
fn every_drafter_gives_the_plain_answer_greedy_and_sampled() {
    let prompt = ["-m", "Tom has 12 apples and buys 7 more. How many apples does Tom have now?", "--max-tokens", "40"];
    for sampling in [&["--temperature", "0"][..], &["--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--seed", "5"]] {
        let base = [&prompt[..], sampling].concat();
        let plain = generate("straw-tiny", &[&base[..], &["--drafter", "off"]].concat());
        assert_eq!((plain["drafter"].as_str(), plain["drafted"].as_u64()), (Some("off"), Some(0)));
        for (drafter, budget) in
            [("ngram", "8"), ("mtp", "3"), ("dflash", "15"), ("dflash-tree", "16"), ("weaver", "32"), ("weaver", "auto")]
        {
            let drafted = generate("straw-tiny", &[&base[..], &["--drafter", drafter, "--budget", budget]].concat());
            assert_eq!(seen(&plain), seen(&drafted), "{drafter} {budget} {sampling:?}");
            assert_eq!(drafted["drafter"], drafter);
            match budget.parse::<u64>() {
                Ok(n) => assert_eq!(drafted["budget"], n),
                Err(_) => assert_eq!(drafted["budget"], "auto"),
            }
        }
    }
}

#[test]
fn drafting_on_the_embedded_model_saves_passes_by_default() {
    let default = generate("straw-tiny", &["-m", "Tom has 12 apples and buys 7 more. How many apples does Tom have now?"]);
    assert_eq!((default["drafter"].as_str(), default["budget"].as_u64()), (Some("weaver"), Some(16)));
    assert_eq!(default["engine"], "fast");
    assert_eq!(default["finish_reason"], "stop");
    assert!(default["tokens_per_forward_pass"].as_f64().unwrap() > 2.0, "{default}");
}

#[test]
fn both_engines_agree_and_both_ignore_the_drafter() {
    let prompt = ["--raw", "-m", "the thing and the other", "--max-tokens", "24", "--ignore-eos"];
    for sampling in [&[][..], &["--temperature", "0.8", "--seed", "3"]] {
        let base = [&prompt[..], sampling].concat();
        let exact = generate("tiny-a", &[&base[..], &["--engine", "reference", "--drafter", "off"]].concat());
        for drafter in ["ngram", "mtp"] {
            let drafted = generate("tiny-a", &[&base[..], &["--engine", "reference", "--drafter", drafter]].concat());
            assert_eq!(seen(&exact), seen(&drafted), "{drafter}");
        }
        let fast = generate("tiny-a", &[&base[..], &["--drafter", "mtp", "--budget", "8"]].concat());
        // The fixture's smallest greedy margin is far above f32 rounding.
        if sampling.is_empty() {
            assert_eq!(exact["token_ids"], fast["token_ids"]);
        }
    }
}

#[test]
fn budgets_are_used_as_asked() {
    let base = ["--raw", "-m", "the thing and the thing and the thing", "--max-tokens", "30", "--ignore-eos", "--drafter", "mtp"];
    let three = generate("tiny-a", &[&base[..], &["--budget", "3"]].concat());
    let eight = generate("tiny-a", &[&base[..], &["--budget", "8"]].concat());
    assert_eq!(seen(&three), seen(&eight));
    let per_pass = |d: &Value| d["drafted"].as_f64().unwrap() / d["passes"].as_f64().unwrap();
    assert!(per_pass(&three) > 2.0 && per_pass(&eight) > 5.0, "{three} {eight}");
    let zero = generate("tiny-a", &[&base[..], &["--budget", "0"]].concat());
    assert_eq!((zero["drafted"].as_u64(), zero["drafter"].as_str()), (Some(0), Some("off")));
    assert_eq!(zero["notes"][0], "budget 0 is plain decoding: mtp drafts nothing");
    assert_eq!(seen(&three), seen(&zero));
}

#[test]
fn the_token_cap_is_met_exactly_and_called_length() {
    let whole = generate("straw-tiny", &["-m", "Count the apples.", "--max-tokens", "20", "--ignore-eos"]);
    for cap in ["1", "2", "7"] {
        for drafter in ["off", "weaver"] {
            let cut =
                generate("straw-tiny", &["-m", "Count the apples.", "--max-tokens", cap, "--ignore-eos", "--drafter", drafter]);
            let n: usize = cap.parse().unwrap();
            assert_eq!(cut["finish_reason"], "length");
            assert_eq!(cut["token_ids"].as_array().unwrap()[..], whole["token_ids"].as_array().unwrap()[..n], "{cap} {drafter}");
            assert_eq!(cut["passes"].as_u64() == Some(0), n == 1, "the first token comes from the prompt pass");
        }
    }
}

#[test]
fn stop_strings_end_the_text_before_them_wherever_they_lie() {
    let prompt = ["-m", "Tom has 12 apples and buys 7 more. How many apples does Tom have now?", "--max-tokens", "60"];
    let whole = generate("straw-tiny", &prompt);
    let text = whole["text"].as_str().unwrap();
    assert!(text.len() > 40, "{text}");
    for (begin, length) in [(9, 5), (20, 11), (31, 1)] {
        let Some(stop) = text.get(begin..begin + length) else { panic!("{text} is cut inside a character") };
        let expected = &text[..text.find(stop).unwrap()];
        for drafter in ["off", "weaver", "mtp"] {
            let cut = generate("straw-tiny", &[&prompt[..], &["--drafter", drafter, "--stop", stop]].concat());
            assert_eq!(
                (cut["text"].as_str(), cut["finish_reason"].as_str()),
                (Some(expected), Some("stop")),
                "{drafter} {stop:?}"
            );
        }
        let streamed = finish(command().args(["generate", "--stop", stop]).args(prompt));
        assert_eq!(streamed.stdout, format!("{expected}\n"));
    }
}

#[test]
fn an_end_token_ends_the_answer_unless_ignored() {
    let base = ["-m", "Tom has 12 apples and buys 7 more. How many apples does Tom have now?", "--max-tokens", "60"];
    let ended = generate("straw-tiny", &base);
    let ids = ended["token_ids"].as_array().unwrap();
    assert_eq!((ended["finish_reason"].as_str(), ids.last().unwrap().as_u64()), (Some("stop"), Some(2)));
    let ignored = generate("straw-tiny", &[&base[..], &["--ignore-eos"]].concat());
    assert_eq!(ignored["finish_reason"], "length");
    assert_eq!(ignored["token_ids"].as_array().unwrap()[..ids.len()], ids[..]);
}

#[test]
fn random_bytes_are_valid_json_and_stream_as_the_same_text() {
    let args = ["--raw", "-m", "the thing", "--max-tokens", "200", "--temperature", "2", "--seed", "11", "--ignore-eos"];
    let document = generate("tiny-a", &args);
    let streamed = finish(command().args(["generate", "--model"]).arg(fixture("qwen35-tiny-a")).args(args));
    assert_eq!(streamed.stdout, format!("{}\n", document["text"].as_str().unwrap()));
    assert!(streamed.stderr.contains("tokens per forward pass"), "{}", streamed.stderr);
}

#[test]
fn a_typed_end_marker_is_text() {
    let count = |text: &str| generate("straw-tiny", &["-m", text, "--max-tokens", "1"])["prompt_tokens"].as_u64().unwrap();
    assert!(count("a <|im_end|> b") > count("a b") + 2, "one control token would add two at most");
}

#[test]
fn settings_that_change_nothing_are_noted() {
    let document = generate("tiny-a", &["--raw", "-m", "the thing", "--max-tokens", "3", "--top-k", "5", "--seed", "9"]);
    assert_eq!(document["notes"][0], "temperature 0 is greedy: --top-k, --seed changes nothing");
    assert_eq!(document["seed"], 9);
}
