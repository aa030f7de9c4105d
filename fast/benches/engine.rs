//! The engine on straw-tiny: what passes, verifications and drafts cost, and tokens per second by workload. Plain decoding,
//! Weaver and the automatic budget run in turn, so that a slow moment hits all alike; figures are medians.
//! Run with `cargo bench -p fast --bench engine`.

use fast::{Engine, LoadOptions};
use specdec::{Budget, DrafterKind, GenerateRequest, Generation, SamplingParams, tokens_per_pass};
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

/// Times each variant runs per prompt.
const REPETITIONS: usize = 5;
/// Tokens of an answer at most.
const MAX_TOKENS: usize = 96;

/// Prompts of the public sets named, in straw-tiny's chat template.
const WORKLOADS: [(&str, [&[u32]; 3]); 3] = [
    (
        // mbpp-11, mbpp-244, mbpp-458
        "code",
        [
            &[
                1, 342, 205, 677, 273, 668, 477, 308, 2014, 1187, 347, 1645, 3056, 759, 737, 335, 273, 975, 3414, 502, 285, 1291,
                379, 63, 504, 1878, 1245, 1227, 408, 1822, 320, 321, 2532, 2014, 2822, 2355, 644, 7082, 411, 568, 8, 82, 1471,
                739, 368, 276, 85, 8, 2, 205, 1, 345, 205,
            ],
            &[
                1, 342, 205, 677, 273, 668, 477, 308, 1576, 285, 2119, 7265, 3436, 6623, 1194, 273, 975, 1027, 379, 63, 504,
                1878, 1245, 1227, 408, 1822, 320, 321, 2532, 2119, 1165, 269, 4532, 859, 2877, 14, 25, 27, 15, 739, 227, 25, 28,
                2, 205, 1, 345, 205,
            ],
            &[
                1, 342, 205, 677, 273, 477, 308, 1576, 285, 2745, 335, 273, 5300, 379, 63, 504, 1878, 1245, 1227, 408, 1822, 320,
                321, 2532, 5300, 69, 6437, 14, 23, 22, 18, 24, 22, 15, 868, 24, 22, 22, 2, 205, 1, 345, 205,
            ],
        ],
    ),
    (
        // gsm8k-test-105, gsm8k-test-1178, math500-253
        "math",
        [
            &[
                1, 342, 205, 41, 2008, 353, 1425, 2527, 1378, 423, 835, 1815, 423, 4186, 447, 353, 1425, 20, 954, 4186, 447, 353,
                1425, 227, 27, 1815, 18, 2263, 6448, 835, 1815, 339, 1082, 335, 839, 3234, 2819, 6312, 845, 1023, 1923, 552,
                1923, 347, 1372, 446, 285, 4759, 1027, 20, 2, 205, 1, 345, 205,
            ],
            &[
                1, 342, 205, 51, 833, 4991, 227, 27, 3477, 7602, 1953, 6174, 6050, 4991, 227, 24, 927, 1194, 332, 393, 341, 423,
                835, 423, 533, 833, 20, 756, 835, 3477, 7602, 1575, 6174, 6050, 5147, 6312, 845, 1023, 1923, 552, 1923, 347,
                1372, 446, 285, 4759, 1027, 20, 2, 205, 1, 345, 205,
            ],
            &[
                1, 342, 205, 50, 340, 791, 76, 1324, 15, 306, 227, 24, 94, 19, 25, 10, 347, 791, 77, 1324, 15, 306, 671, 17, 23,
                10, 20, 1466, 357, 285, 689, 335, 791, 77, 1004, 14, 27, 15, 19, 23, 15, 10, 6312, 3976, 349, 285, 4339, 347,
                2225, 285, 4759, 5785, 313, 2610, 2481, 310, 97, 2955, 2, 205, 1, 345, 205,
            ],
        ],
    ),
    (
        // mtbench-101, vicuna-15, selfinstruct-seed_task_1
        "chat",
        [
            &[
                1, 342, 205, 743, 380, 542, 619, 569, 4943, 706, 1965, 313, 273, 690, 341, 446, 273, 1737, 335, 1798, 20, 954,
                619, 614, 2169, 302, 1020, 819, 268, 285, 1697, 3826, 18, 1688, 620, 922, 933, 2303, 37, 6542, 357, 285, 3826,
                619, 2169, 1073, 404, 571, 37, 2, 205, 1, 345, 205,
            ],
            &[
                1, 342, 205, 42, 6991, 273, 1099, 268, 275, 867, 1537, 3393, 2434, 643, 681, 1397, 367, 737, 2009, 412, 1137,
                308, 449, 773, 366, 285, 7184, 347, 353, 5162, 79, 2154, 335, 464, 4976, 73, 1259, 4491, 1026, 20, 2, 205, 1,
                345, 205,
            ],
            &[
                1, 342, 205, 640, 357, 285, 323, 2231, 2022, 285, 975, 5245, 3684, 52, 539, 695, 550, 417, 695, 32, 549, 539,
                695, 3818, 993, 2, 205, 1, 345, 205,
            ],
        ],
    ),
];

/// What runs in turn.
const VARIANTS: [(&str, DrafterKind, Option<usize>); 7] = [
    ("plain", DrafterKind::Off, Some(0)),
    ("mtp 3", DrafterKind::Mtp, Some(3)),
    ("dflash 8", DrafterKind::Dflash, Some(8)),
    ("dflash-tree 16", DrafterKind::DflashTree, Some(16)),
    ("weaver 8", DrafterKind::Weaver, Some(8)),
    ("weaver 16", DrafterKind::Weaver, Some(16)),
    ("weaver auto", DrafterKind::Weaver, None),
];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/straw-tiny");
    let engine = Engine::load(&folder, &LoadOptions::default())?;
    println!("straw-tiny, {} threads", engine.threads());
    costs(&engine)?;
    println!("\ntokens per second after the first token (tokens per pass), greedy");
    for (workload, prompts) in WORKLOADS {
        let mut rates = VARIANTS.map(|_| vec![]);
        let mut taus = VARIANTS.map(|_| vec![]);
        for prompt in prompts {
            for _ in 0..REPETITIONS {
                for (i, variant) in VARIANTS.iter().enumerate() {
                    let answer = answer(&engine, prompt, variant)?;
                    rates[i].push((answer.tokens.len() - 1) as f64 / answer.decode_s);
                    taus[i].extend(tokens_per_pass(&answer.rounds));
                }
            }
        }
        for (i, variant) in VARIANTS.iter().enumerate() {
            let mean = taus[i].iter().sum::<f64>() / taus[i].len() as f64;
            println!("{workload:>5} {:>15} {:7.1} ({mean:.2})", variant.0, median(&mut rates[i]));
        }
    }
    Ok(())
}

fn costs(engine: &Engine) -> Result<(), Box<dyn Error>> {
    let cost = engine.measure_cost(15)?;
    println!("plain pass {:.3} ms, commit of 4 rows {:.3} ms", cost.plain_s * 1e3, cost.commit_s * 1e3);
    println!("a row costs {:.4} ms more per 1000 tokens of context", cost.row_per_context_s * 1e6);
    for rows in [1, 2, 4, 8, 12, 16, 17, 24, 33] {
        let verify = cost.verify_s[rows - 1];
        println!("verify {rows:>2} rows {:7.3} ms, V({rows})/V(1) {:.2}", verify * 1e3, verify / cost.verify_s[0]);
    }
    for draft in &cost.drafts {
        let each: Vec<String> = draft.by_budget.iter().map(|(budget, s)| format!("{budget}: {:.3} ms", s * 1e3)).collect();
        println!("draft {:>11} {}", draft.drafter.name(), each.join(", "));
    }
    Ok(())
}

fn answer(
    engine: &Engine,
    prompt: &[u32],
    &(_, drafter, budget): &(&str, DrafterKind, Option<usize>),
) -> Result<Generation, Box<dyn Error>> {
    let request = GenerateRequest {
        prompt: prompt.to_vec(),
        max_tokens: MAX_TOKENS,
        stop_tokens: vec![],
        sampling: SamplingParams::greedy(),
        drafter,
        budget: Budget::new(budget.unwrap_or(0))?,
    };
    let go = &mut |_| ControlFlow::Continue(());
    Ok(match budget {
        Some(_) => engine.generate(&request, go)?,
        None => engine.generate_auto(&request, go)?,
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
