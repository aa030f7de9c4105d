"""The training model computes what the fixture's oracle computed, and its parts agree with each other."""
import json

import torch
from safetensors.torch import load_file

from straw_training import gdn
from straw_training.decode import answers
from straw_training.load import load_mtp, load_target
from straw_training.train_mtp import chain_step

F32_REORDERED = 2e-3  # logits of size 3; transformers itself differs by 2e-4 between its two paths


def test_logits_equal_the_oracle_on_64_tokens(fixture_dir):
    target, _ = load_target(fixture_dir)
    ids = torch.tensor([json.load(open(f"{fixture_dir}/reference.json"))["prompt64"]])
    want = load_file(f"{fixture_dir}/ref_prompt64.safetensors")["logits_f64"].float()
    assert (target.head(target(ids))[0] - want).abs().max() < F32_REORDERED


def test_nested_and_flat_checkpoints_are_the_same_model(fixture_dir):
    ids = torch.arange(20)[None]
    a, b = (load_target(f)[0](ids) for f in (fixture_dir, f"{fixture_dir}/flat"))
    assert torch.equal(a, b)


def test_one_token_decoding_follows_the_whole_row_pass(fixture_dir):
    target, tokens = load_target(fixture_dir)
    prompt = torch.tensor([list(range(10, 22)), list(range(40, 46)) + [0] * 6])
    ids, end = answers(target, prompt, torch.tensor([12, 6]), 20, 0.0, tokens["ends"], tokens["banned"], "cpu")
    for row, start, stop in zip(ids, (12, 6), end.tolist()):
        logits = target.head(target(row[None, :stop]))[0]
        logits[:, tokens["banned"]] = -1e9
        assert torch.equal(logits[start - 1 : stop - 1].argmax(-1), row[start:stop])


def test_chunked_scan_equals_the_recurrence():
    r = lambda *s: torch.randn(*s)
    x = r(2, 65, 4, 16), r(2, 65, 4, 16), r(2, 65, 4, 16), -r(2, 65, 4).abs(), torch.sigmoid(r(2, 65, 4))
    a, b = gdn.chunked(*x), gdn.recurrence(*x)
    assert ((a - b).norm() / b.norm()) < 1e-4


def test_mtp_chain_depth_one_sees_only_true_rows_and_itself(fixture_dir):
    target, _ = load_target(fixture_dir)
    mtp = load_mtp(fixture_dir, target)
    ids = torch.arange(30, 50)[None]
    hidden = target(ids)
    h0, past = chain_step(mtp, target.embed(ids[:, 1:-1]), hidden[:, :-2], 0, [])
    h1, _ = chain_step(mtp, target.embed(ids[:, 2:]), h0, 1, past)
    t = 9  # the same by hand: true rows 0..t, then the drafted row
    x = torch.cat([mtp.mix(target.embed(ids[:, 1:-1]), hidden[:, :-2])[:, : t + 1], mtp.mix(target.embed(ids[:, 2:]), h0)[:, t : t + 1]], 1)
    by_hand = mtp.run(x, torch.arange(t + 2))
    assert (by_hand[:, -1] - h1[:, t]).abs().max() < 1e-4
