"""pretrain: the target from scratch on prepare's token streams, for a number of seconds.

Batches mix the parts by fixed shares; question-answer parts start rows at document starts. In the last part of the run
the shares move towards question-answer text while the rate decays.
"""
import argparse
import json
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from . import gdn
from .decode import answers, compile_layers
from .export import write_target
from .load import device_of, load_target, log
from .model import Target, TargetConfig, amp
from .optim import compiled, train

EARLY = {"code_inst": 18, "code_more": 10, "code_raw": 14, "math": 8, "chat": 6, "chat_more": 4, "prose": 4}  # rows of 64
LATE = {"code_inst": 24, "code_more": 12, "code_raw": 4, "math": 10, "chat": 9, "chat_more": 4, "prose": 1}
ALIGNED = ("code_inst", "code_more", "math", "chat", "chat_more")
PROMPTS = ("Write a python function to merge two sorted lists", "Write a Python function `is_prime` to check whether a number is prime",
           "Tom has 12 apples and buys 7 more. How many apples does Tom have now?", "What does the command `tar` do?")


class Stream:
    def __init__(self, corpus, name, length, device):
        self.ids, starts = corpus[f"train.{name}.ids"].to(device), corpus[f"train.{name}.starts"].to(device).long()
        self.starts, self.aligned, self.length = starts[starts < self.ids.numel() - length - 2], name in ALIGNED, length
        self.offsets = torch.arange(length + 1, device=device)

    def rows(self, n):
        device = self.ids.device
        if self.aligned:
            at = self.starts[torch.randint(len(self.starts), (n,), device=device)]
        else:
            at = torch.randint(self.ids.numel() - self.length - 2, (n,), device=device)
        return self.ids[at[:, None] + self.offsets]


def held_out_loss(target, corpus, device, length=1024, rows=32):
    """Nats per token over packed held-out documents, by workload."""
    out = {}
    for name in ("code", "math", "chat"):
        ids = corpus[f"held.{name}.ids"].to(device).long()
        n = min(rows, (ids.numel() - 1) // length)
        if n < 1:
            continue
        x, y, total = ids[: n * length].view(n, length), ids[1 : n * length + 1].view(n, length), 0.0
        with torch.no_grad(), amp(device):
            for a, b in zip(x.split(8), y.split(8)):
                total += F.cross_entropy(target.head(target(a)).float().flatten(0, 1), b.flatten(), reduction="sum").item()
        out[name] = round(total / (n * length), 4)
    return out


def pretrain(config, corpus, device, seconds=None, steps=None, rows=64, length=1024, lr=3e-3):
    torch.manual_seed(0)
    target = Target(config).to(device)
    log("parameters:", sum(p.numel() for p in target.parameters()) / 1e6, "M")
    streams = {k: Stream(corpus, k, length, device) for k in EARLY if len(corpus[f"train.{k}.ids"]) > length + 64}
    loss_fn = compiled(lambda h, w, y: F.cross_entropy(F.linear(h, w.to(h.dtype)).float().flatten(0, 1), y.flatten()))

    def loss_of(progress, show):
        share = LATE if progress > 0.65 else EARLY
        ids = torch.cat([s.rows(max(1, share[k] * rows // 64)) for k, s in streams.items()]).long()
        ids = ids[:rows] if len(ids) >= rows else torch.cat([ids, ids[: rows - len(ids)]])
        with amp(device):
            loss = loss_fn(target(ids[:, :-1]), target.head_weight(), ids[:, 1:])
        return loss, round(loss.item(), 3) if show else None

    history = train("pretrain", target, lr, loss_of, log, seconds, steps)
    return target.requires_grad_(False).eval(), history


def show_answers(target, tokenizer_path, ends, banned, device, new=160):
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(tokenizer_path)
    for q in PROMPTS:
        ids = torch.tensor([t.encode(f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids], device=device)
        out, end = answers(target, ids, torch.tensor([ids.shape[1]], device=device), new, 0.0, ends, banned, device)
        print("-----\n" + t.decode(out[0, : end[0]].tolist(), skip_special_tokens=False), flush=True)


def main(argv):
    p = argparse.ArgumentParser(prog="pretrain", description=__doc__)
    p.add_argument("corpus", help="corpus.safetensors of prepare (tokenizer.json beside it)")
    p.add_argument("out", help="target directory to write")
    p.add_argument("--seconds", type=float, default=540)
    p.add_argument("--steps", type=int, help="instead of --seconds")
    a = p.parse_args(argv)
    device, began = device_of(), time.time()
    gdn.setup(device, log)
    corpus = load_file(a.corpus)
    compile_layers()
    target, history = pretrain(TargetConfig(), corpus, device, a.seconds, a.steps)
    compile_layers(False)
    write_target(a.out, target, f"{a.corpus.rsplit('/', 1)[0]}/tokenizer.json")
    report = {"loss": history, "held_out_loss": held_out_loss(target, corpus, device), "seconds": round(time.time() - began, 1)}
    log("held-out loss", report["held_out_loss"])
    json.dump(report, open(f"{a.out}/pretrain.json", "w"))
    show_answers(target, f"{a.out}/tokenizer.json", [2, 0], 3, device)
