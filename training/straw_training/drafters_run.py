"""drafters: generate, train_mtp, train_dflash, train_weaver, export and a first evaluation in one process.

Compilation takes minutes on a fresh machine, so this process may start beside `pretrain`: it runs every step briefly on
random weights and rows, then waits for the target directory and the corpus. Every result is written as soon as it exists.
"""
import argparse
import json
import os
import time

import torch
from safetensors.torch import load_file, save_file

from . import evaluate as ev
from . import export, gdn
from .decode import check_step, compile_layers
from .drafters import MTP, DFlash, DFlashConfig, Weaver, WeaverConfig
from .generate import generate
from .load import device_of, load_dflash, load_mtp, load_target, load_weaver, log, marker_of, save_parts
from .model import Target, TargetConfig
from .pretrain import wait_for
from .records import BUCKETS, Live, Reused, corpus_rows
from .train_dflash import train_dflash
from .train_mtp import train_mtp
from .train_weaver import train_weaver

SHARES = {"generate": 0.13, "mtp": 0.14, "dflash": 0.49, "weaver": 0.24}  # of the time for drafters; the rest is set-up and evaluation


class Parts:
    """Drafters on the device, fresh or from a directory that holds all three."""

    def __init__(self, target, a, device):
        c = target.c
        if a.init:
            self.mtp, self.dflash, self.weaver = load_mtp(a.init, target, device), load_dflash(f"{a.init}/dflash", device), load_weaver(f"{a.init}/weaver", device)
            self.weaver.c.candidate_pool_size = a.pool  # no tensor depends on it
            return
        self.mtp = MTP(c).to(device)
        self.dflash = DFlash(DFlashConfig(hidden_size=c.hidden_size, num_hidden_layers=a.layers, num_attention_heads=c.num_attention_heads, head_dim=c.head_dim,
                                          num_key_value_heads=c.num_key_value_heads, intermediate_size=a.intermediate, rope_theta=c.rope_theta)).to(device)
        self.weaver = Weaver(WeaverConfig(target_hidden_size=c.hidden_size, candidate_pool_size=a.pool)).to(device)


def stages(target, parts, source, a, seconds, out=None):
    """Train the three drafters on one source; with `out`, write each when it is done."""
    head, history, short = target.head_weight(), {}, seconds is None

    def keep(name, module):
        module.requires_grad_(False).eval()
        if out:
            save_parts(module.state_dict(), f"{out}/{name}")
            json.dump(history, open(f"{out}/history.json", "w"))

    limit = lambda name: {"steps": a.warm_steps} if short else {"seconds": seconds * SHARES[name]}
    history["mtp"] = train_mtp(parts.mtp, target, head, source, **limit("mtp"), places=a.places)
    keep("mtp", parts.mtp)
    history["dflash"] = train_dflash(parts.dflash, target, head, source, **limit("dflash"), blocks=a.blocks)
    keep("dflash", parts.dflash)
    history["weaver"] = train_weaver(parts.weaver, parts.dflash, target, head, source, **limit("weaver"), blocks=a.blocks, own_after=0.4 if short else 0.7)
    keep("weaver", parts.weaver)


def fake_rows(count, vocab, device):
    """Random rows of every length bucket."""
    end = torch.tensor(BUCKETS, device=device)[torch.arange(count, device=device) % len(BUCKETS)]
    ids = torch.randint(8, vocab, (count, BUCKETS[-1]), device=device).to(torch.int16)
    return {"ids": ids, "prompt": end // 4, "end": end, "hard": torch.arange(count, device=device) % 2, "work": torch.arange(count, device=device) % 3}


def fake_prompts(vocab, count=1000, length=8):
    ids, starts = torch.randint(8, vocab, (count * length,)).to(torch.int16), torch.arange(0, count * length, length, dtype=torch.int32)
    return {f"prompts.{w}.{k}": v for w in ev.NEW for k, v in (("ids", ids), ("starts", starts))}


def every_shape(source):
    """Make the source hand out its buckets in turn, so that a short run meets every shape."""
    turn = [0]
    buckets = source.sources[0]

    def batch(corpus_share=0.0):
        turn[0] += 1
        source.sources = [[buckets[turn[0] // 2 % len(buckets)]]]
        return Live.batch(source)

    source.batch = batch
    return source


def main(argv):
    p = argparse.ArgumentParser(prog="drafters", description=__doc__)
    p.add_argument("target", help="target directory; waited for if it does not exist yet")
    p.add_argument("corpus", help="corpus.safetensors of prepare (tokenizer.json beside it)")
    p.add_argument("out", help="directory for parts, rows and reports")
    p.add_argument("--seconds", type=float, default=1000, help="from the target's arrival to the end of training")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--intermediate", type=int, default=1536)
    p.add_argument("--pool", type=int, default=32)
    p.add_argument("--rows", type=int, default=6144)
    p.add_argument("--blocks", type=int, default=3072)
    p.add_argument("--places", type=int, default=12288)
    p.add_argument("--batch-tokens", type=int, default=49152)
    p.add_argument("--warm-steps", type=int, default=12)
    p.add_argument("--init", help="directory with mtp.*, dflash/ and weaver/ to start from")
    p.add_argument("--prompts", help="prompts.jsonl for the evaluation")
    a = p.parse_args(argv)
    torch.manual_seed(0)
    device, began = device_of(), time.time()
    os.makedirs(a.out, exist_ok=True)
    gdn.setup(device, log)
    if device == "cuda":
        log("in-place step differs by", check_step(device))
    folder = os.path.dirname(a.corpus)
    compile_layers()
    target = Target(TargetConfig()).to(device).requires_grad_(False).eval()
    fake = fake_rows(2000, target.c.vocab_size, device)
    generate(target, fake_prompts(target.c.vocab_size), device, 6, a.rows, 4 * a.rows)
    parts = Parts(target, a, device)
    stages(target, parts, every_shape(Live(target, parts.dflash.c.taps, fake, device, None, a.batch_tokens)), a, None)
    log("WARM DONE", round(time.time() - began, 1), "s; waiting for", a.target)
    corpus, marker = load_file(wait_for(a.corpus)), marker_of(folder)
    extra = corpus_rows(corpus, marker, device)
    log("corpus rows", len(extra[0]))
    wait_for(f"{a.target}/pretrain.json")
    start = time.time()
    real, tokens = load_target(a.target, device)
    target.load_state_dict(real.state_dict())
    log("target loaded")

    rows = generate(target, corpus, device, a.seconds * SHARES["generate"], a.rows, 900000, tokens["ends"], 3, marker)
    save_file({k: v[-2000:].contiguous().cpu() for k, v in rows.items()}, f"{a.out}/rows-sample.safetensors")
    torch.cuda.empty_cache() if device == "cuda" else None
    parts = Parts(target, a, device)
    stages(target, parts, Reused(Live(target, parts.dflash.c.taps, rows, device, extra, a.batch_tokens)), a, a.seconds, a.out)
    log("TRAINED", round(time.time() - start, 1), "s after the target")

    compile_layers(False)
    m, result = ev.Models(target, parts.dflash, parts.weaver, parts.mtp), {}
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    for t in (0.0, 1.0):
        for name in ("held-out", "prompts"):
            for w in ev.NEW:
                held = ev.split(corpus[f"held_prompts.{w}.ids"], corpus[f"held_prompts.{w}.starts"])
                prompts = [x for x in held if len(x) <= 320] if name == "held-out" else ev.prompts_of(a.prompts, w, tokenizer, 320)
                torch.manual_seed(0)
                result[f"{name} {w} T={t}"] = ev.evaluate_prompts(m, prompts[:48], w, tokens, device, t, (4, 8, 16))
                log(name, w, t, result[f"{name} {w} T={t}"])
                json.dump(result, open(f"{a.out}/evaluate.json", "w"))
    log("ALL DONE")

