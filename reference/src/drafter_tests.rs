//! DFlash and Weaver against the numbers of an independent implementation: a wrong drafter would only be accepted less,
//! which no test of emitted tokens can see.

use crate::{
    fixture::{EXACT_F64, Expected, ids, list, root},
    model::Target,
    oracle::{load_dflash, load_weaver},
    rows::Rows,
    state::State,
    weights::Checkpoint,
};
use ndarray::{Array2, s};
use serde_json::Value;
use specdec::ModelConfig;

const FOLDER: &str = "tests/fixtures/drafters-tiny";

#[test]
fn dflash_and_weaver_compute_what_their_papers_say() {
    let target_dir = root("tests/fixtures/qwen35-tiny-a/flat");
    let json = std::fs::read_to_string(target_dir.join("config.json")).unwrap();
    let config = ModelConfig::from_json(&json, None).unwrap();
    let target = Target::load(&Checkpoint::open(&target_dir).unwrap(), config).unwrap();
    let dflash = load_dflash(&root(FOLDER).join("dflash"), &target.config).unwrap().expect("the folder has a DFlash");
    let weaver = load_weaver(&root(FOLDER).join("weaver"), &target.config, &dflash.config).unwrap().expect("and a Weaver");
    let expected = Expected::open_in(&root(FOLDER), "expected.safetensors");
    let case: Value = serde_json::from_str(&std::fs::read_to_string(root(FOLDER).join("expected.json")).unwrap()).unwrap();
    let context: Vec<u32> = ids("/tree_prompt32");

    let pass = target.forward(&context, &Rows::chain(context.len(), 0), &State::new(&target.config));
    let every = Vec::from_iter(0..context.len());
    let mut state = dflash.start();
    // In two steps, as after a prompt and a round.
    for part in [&every[..20], &every[20..]] {
        dflash.observe(&pass.features(&dflash.config.target_layer_ids, part), &mut state);
    }
    let first = case["root"].as_u64().unwrap() as u32;
    let hidden = dflash.draft(&target, first, &state);
    expected.check("dflash.hidden", &hidden, EXACT_F64);
    expected.check("dflash.logits", &target.logits(&hidden), EXACT_F64);

    let last = context.len() - 1;
    let prefix = weaver.prefix(&pass.hidden.slice(s![last..last + 1, ..]).to_owned(), &hidden);
    let mut queries = Array2::zeros((0, target.config.hidden_size));
    for tokens in case["paths"].as_array().unwrap() {
        let (mut path, mut query) = (prefix.clone(), None);
        for (depth, &token) in list::<u32>(tokens).iter().enumerate() {
            query = Some(weaver.node(&target, token, depth, &mut path));
        }
        queries.push_row(query.expect("a path has a root").view()).unwrap();
    }
    expected.check("weaver.queries", &queries, EXACT_F64);
    expected.check("weaver.residuals", &target.logits(&queries), EXACT_F64);
}
