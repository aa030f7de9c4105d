"""Every step of the recipe, seconds each, on the random fixture model: files come out and losses go down."""
import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from straw_training import evaluate, export, generate, load, math_text, prepare, pretrain, records, text
from straw_training.drafters import MTP, DFlash, DFlashConfig, Weaver, WeaverConfig
from straw_training.model import TargetConfig
from straw_training.train_dflash import train_dflash
from straw_training.train_mtp import train_mtp
from straw_training.train_weaver import train_weaver

TAPS = (0, 1, 2)


@pytest.fixture(scope="module")
def target(fixture_dir):
    return load.load_target(fixture_dir)


@pytest.fixture(scope="module")
def rows(target):
    """Two repeated patterns as answers: something that a drafter can learn in a few steps."""
    g = torch.Generator().manual_seed(0)
    pattern = torch.randint(10, 200, (2, 8), generator=g)
    ids = pattern[torch.arange(16) % 2].repeat(1, 8).to(torch.int16)
    n = torch.full((16,), 8)
    return {"ids": ids, "prompt": n, "end": n * 8, "hard": torch.arange(16) % 2, "work": torch.arange(16) % 3}


@pytest.fixture(scope="module")
def source(target, rows):
    return records.Live(target[0], TAPS, rows, "cpu", tokens=256)


@pytest.fixture(scope="module")
def trained(target, source):
    torch.manual_seed(0)
    model, head = target[0], target[0].head_weight()
    d = DFlash(DFlashConfig(hidden_size=64, taps=TAPS, head_dim=16, intermediate_size=64, mask_token_id=319))
    w = Weaver(WeaverConfig(target_hidden_size=64, model_dim=32, num_heads=2, hidden_dim=32, candidate_pool_size=8))
    m = MTP(model.c)
    history = {"mtp": train_mtp(m, model, head, source, steps=25, places=128, lr=1e-2, every=24),
               "dflash": train_dflash(d, model, head, source, steps=25, blocks=16, lr=1e-2, every=24)}
    d.requires_grad_(False)
    history["weaver"] = train_weaver(w, d, model, head, source, steps=12, blocks=16, lr=1e-2, own_after=0.5, every=11)
    return m.eval(), d.eval(), w.eval(), history


def test_drafter_losses_fall(trained):
    history = trained[-1]
    assert history["mtp"][-1][2][0][0] < history["mtp"][0][2][0][0]
    assert history["dflash"][-1][2]["loss"][0] < history["dflash"][0][2]["loss"][0]
    assert "own" in history["weaver"][-1][2], "the last steps must use the Weaver's own paths"


def test_exported_parts_load_and_evaluate(target, trained, fixture_dir, tmp_path):
    mtp, dflash, weaver, _ = trained
    save_file(load.stored(mtp.state_dict()), f"{tmp_path}/mtp.safetensors")
    export.write_dflash(f"{tmp_path}/d", dflash, target[0].c)
    export.write_weaver(f"{tmp_path}/w", weaver, target[0].c.vocab_size)
    out = f"{tmp_path}/out"
    export.main([f"{fixture_dir}/flat", out, "--mtp", f"{tmp_path}/mtp.safetensors", "--dflash", f"{tmp_path}/d", "--weaver", f"{tmp_path}/w"])
    again, tokens = load.load_target(out)
    m = evaluate.Models(again, load.load_dflash(f"{out}/dflash"), load.load_weaver(f"{out}/weaver"), load.load_mtp(out, again))
    row = evaluate.evaluate_prompts(m, [list(range(10, 20)), list(range(30, 37))], "math", tokens, "cpu", budgets=(4, 16))
    assert 1.0 <= row["dflash_chain"] <= 16 and 1.0 <= row["weaver_tree_4"] <= row["weaver_tree_16"] <= 16


def test_generated_rows_end_where_the_answer_ends(target):
    corpus = {}
    for w in generate.WORK:
        corpus[f"prompts.{w}.ids"] = torch.arange(24, dtype=torch.int16) + 10
        corpus[f"prompts.{w}.starts"] = torch.tensor([0, 6, 14], dtype=torch.int32)
    model, tokens = target
    out = generate.generate(model, corpus, "cpu", 3, rows=4, count=6, ends=tokens["ends"], banned=tokens["banned"])
    assert (out["end"] > out["prompt"]).all() and out["ids"].shape[1] == generate.LENGTH
    assert (out["ids"].long() < 320).all()


def test_records_train_a_drafter_without_the_target(target, tmp_path):
    model = target[0]
    ids = torch.arange(40).repeat(2, 1) + 20
    hidden, taps = model(ids, taps=TAPS)
    flat = lambda x: x.flatten(0, 1).to(torch.bfloat16)
    save_file({"tokens": ids.flatten().int(), "offsets": torch.tensor([0, 40, 80]), "prompt_lengths": torch.tensor([8, 8], dtype=torch.int32),
               "hidden": flat(hidden), "taps": flat(taps)}, f"{tmp_path}/000.safetensors",
              {"format": "straw-train-records", "version": "1", "taps": json.dumps(TAPS), "temperature": "0"})
    source = records.Recorded(str(tmp_path), "cpu", rows=2)
    d = DFlash(DFlashConfig(hidden_size=64, taps=source.taps, head_dim=16, intermediate_size=64, mask_token_id=319))
    history = train_dflash(d, model, model.head_weight(), source, steps=25, blocks=8, lr=1e-2, every=24)
    assert history[-1][2]["loss"][0] < history[0][2]["loss"][0]


def test_prepare_and_pretrain_from_packages_and_templates(tmp_path):
    import lzma
    import zipfile
    source = tmp_path / "source"
    (source / "packages").mkdir(parents=True)
    code = "\n\n".join(f'def add_{i}(a, b):\n    """Return the sum of two numbers plus {i}.\n\n    >>> add_{i}(1, 2)\n    {3+i}\n    """\n    total = a + b + {i}\n    return total' for i in range(30))
    with zipfile.ZipFile(source / "packages/a.whl", "w") as z:
        z.writestr("a/m.py", code)
    rng = random.Random(0)
    with lzma.open(source / "math.xz", "wb") as f:
        f.write("\0".join(math_text.templated(rng) for _ in range(700)).encode())
    with lzma.open(source / "chat.xz", "wb") as f:
        f.write("\0".join(text.chat(f"Question number {i} about tools?", f"Answer {i} it is.") for i in range(600)).encode())
    bench = tmp_path / "bench.jsonl"
    bench.write_text(json.dumps({"prompt": "Question number 599 about tools?"}) + "\n")
    log = prepare.prepare(str(source), str(tmp_path / "out"), str(bench))
    assert log["code_inst"]["kept"] > 0 and log["code_more"]["kept"] > 0 and len(log["math"]["sha256"]) == 64
    corpus = load_file(tmp_path / "out/corpus.safetensors")
    small = TargetConfig(vocab_size=8192, hidden_size=32, intermediate_size=32, head_dim=16, rotary_dim=4, linear_key_head_dim=8, linear_value_head_dim=8,
                         layer_types=["linear_attention", "full_attention"])
    _, history, passes = pretrain.pretrain(small, lambda: corpus, "cpu", steps=2, rows=4, length=64)
    assert history[0][2]["held out"]["code" if "code" in history[0][2]["held out"] else "math"] > 1.0
    assert passes["code_more"] > 0


def test_benchmark_text_is_dropped(tmp_path):
    words = " ".join(f"w{i}" for i in range(20))
    bench = tmp_path / "b.jsonl"
    bench.write_text(json.dumps({"prompt": words}) + "\n")
    grams, known = text.benchmark_grams(bench)
    kept, dropped = text.decontaminate([f"before {words} after", "w1 w2 w3 something else"], grams, known)
    assert dropped == 1 and len(kept) == 1


def test_varied_problems_stay_right():
    rng = random.Random(1)
    done = 0
    for _ in range(50):
        v = math_text.vary("Tom has 38 apples and eats 9. How many are left?", "Tom has 38 - 9 = 29 apples left.\n#### 29", rng)
        if v:
            a, b = [int(x) for x in __import__("re").findall(r"\d+", v[0])]
            assert v[1].endswith(f"#### {a-b}") and f"{a} - {b} = {a-b}" in v[1]
            done += 1
    assert done > 10
