"""pretrain: the target on prepare's token streams, from scratch or from given weights, for a number of seconds.

Batches mix the parts by fixed shares; question-answer parts start rows at document starts. In the last part of the run
the shares move towards question-answer text while the rate decays to zero. Every part is read in passes (each token once
a pass), the passes are reported, and the held-out loss is measured on the way: repeating a small part shows there first.
"""
import argparse
import json
import os
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

EARLY = {"code_inst": 7, "code_more": 8, "code_raw": 32, "math": 7, "chat": 2, "chat_more": 4, "prose": 4}  # rows of 64
LATE = {"code_inst": 16, "code_more": 13, "code_raw": 14, "math": 11, "chat": 3, "chat_more": 5, "prose": 2}
ALIGNED = ("code_inst", "code_more", "math", "chat", "chat_more")
PROMPTS = ("Write a python function to merge two sorted lists", "Write a Python function `is_prime` to check whether a number is prime",
           "Tom has 12 apples and buys 7 more. How many apples does Tom have now?", "What does the command `tar` do?")


class Stream:
    """One part in passes: each pass cuts it at a fresh offset into rows of length + 1, moved to document starts where aligned, in random order."""

    def __init__(self, corpus, name, length, device):
        self.ids, starts = corpus[f"train.{name}.ids"].to(device), corpus[f"train.{name}.starts"].to(device).long()
        self.starts, self.aligned, self.length = starts[starts < self.ids.numel() - length - 2], name in ALIGNED, length
        self.offsets, self.queue, self.read = torch.arange(length + 1, device=device), starts[:0], 0

    def new_pass(self):
        last = self.ids.numel() - self.length - 2
        at = torch.arange(int(torch.randint(min(self.length, last), ())), last, self.length, device=self.ids.device)
        if self.aligned:
            at = self.starts[torch.searchsorted(self.starts, at, right=True).clamp(min=1) - 1]
        return at[torch.randperm(len(at), device=at.device)]

    def rows(self, n):
        while len(self.queue) < n:
            self.queue = torch.cat([self.queue, self.new_pass()])
        at, self.queue = self.queue[:n], self.queue[n:]
        self.read += n * self.length
        return self.ids[at[:, None] + self.offsets]

    def passes(self):
        return round(self.read / self.ids.numel(), 2)


class HeldOut:
    """Held-out loss in batches of the training shape, so that nothing is compiled for it."""

    def __init__(self, corpus, rows, length, device):
        self.rows, self.parts = rows, {}
        for name in ("code", "math", "chat"):
            ids = corpus.get(f"held.{name}.ids", torch.empty(0))
            n = min(32, (len(ids) - 1) // length)
            if n > 0:
                self.parts[name] = ids[: n * length + 1].to(device).long(), n, length

    def __call__(self, target):
        out = {}
        for name, (ids, n, length) in self.parts.items():
            x, y, total = ids[:-1].view(n, length), ids[1:].view(n, length), 0.0
            for a, b in zip(x.split(self.rows), y.split(self.rows)):
                with amp(ids.device):
                    h = target(F.pad(a, (0, 0, 0, self.rows - len(a)))).detach()[: len(a)]
                    for hi, bi in zip(h.split(8), b.split(8)):
                        total += F.cross_entropy(target.head(hi).detach().float().flatten(0, 1), bi.flatten(), reduction="sum").item()
            out[name] = round(total / (n * length), 4)
        return out


def held_out_loss(target, corpus, device):
    """Nats per token over packed held-out documents (up to 32 rows of 1024), by workload."""
    with torch.no_grad():
        return HeldOut(corpus, 8, 1024, device)(target)


def pretrain(config, corpus, device, seconds=None, steps=None, rows=64, length=1024, lr=3e-3, init=None):
    """corpus: prepare's tensors, or a function that returns them (called after compilation). init: weights to start from, or a function."""
    torch.manual_seed(0)
    target = Target(config).to(device)
    log("parameters:", sum(p.numel() for p in target.parameters()) / 1e6, "M")
    loss_fn = compiled(lambda h, w, y: F.cross_entropy(F.linear(h, w.to(h.dtype)).float().flatten(0, 1), y.flatten()))

    def loss(ids):
        with amp(device):
            return loss_fn(target(ids[:, :-1]), target.head_weight(), ids[:, 1:])

    if callable(corpus):
        for _ in range(3):
            loss(torch.randint(8, config.vocab_size, (rows, length + 1), device=device)).backward()
        target.zero_grad(set_to_none=True)
        log("compiled")
        corpus = corpus()
    if init is not None:
        target.load_state_dict(init() if callable(init) else init)
    streams = {k: Stream(corpus, k, length, device) for k in EARLY if len(corpus[f"train.{k}.ids"]) > length + 64}
    held = HeldOut(corpus, rows, length, device)

    def loss_of(progress, show):
        share = LATE if progress > 0.65 else EARLY
        ids = torch.cat([s.rows(max(1, share[k] * rows // 64)) for k, s in streams.items()]).long()
        ids = ids[:rows] if len(ids) >= rows else torch.cat([ids, ids[: rows - len(ids)]])
        value = loss(ids)
        return value, {"loss": round(value.item(), 3), "held out": held(target)} if show else None

    history = train("pretrain", target, lr, loss_of, log, seconds, steps)
    return target.requires_grad_(False).eval(), history, {k: s.passes() for k, s in streams.items()}


def show_answers(target, tokenizer_path, ends, banned, device, new=160):
    from tokenizers import Tokenizer
    t = Tokenizer.from_file(tokenizer_path)
    for q in PROMPTS:
        ids = torch.tensor([t.encode(f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids], device=device)
        out, end = answers(target, ids, torch.tensor([ids.shape[1]], device=device), new, 0.0, ends, banned, device)
        print("-----\n" + t.decode(out[0, : end[0]].tolist(), skip_special_tokens=False), flush=True)


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.5)
    return path


def main(argv):
    p = argparse.ArgumentParser(prog="pretrain", description=__doc__)
    p.add_argument("corpus", help="corpus.safetensors of prepare (tokenizer.json beside it); waited for if it does not exist yet")
    p.add_argument("out", help="target directory to write")
    p.add_argument("--seconds", type=float, default=540, help="of training, compilation not counted")
    p.add_argument("--steps", type=int, help="instead of --seconds")
    p.add_argument("--lr", type=float, default=3e-3, help="highest rate")
    p.add_argument("--init", help="target directory to start from; waited for likewise")
    a = p.parse_args(argv)
    device, began = device_of(), time.time()
    gdn.setup(device, log)
    compile_layers()
    init = (lambda: load_target(wait_for(f"{a.init}/config.json")[: -len("/config.json")], device)[0].state_dict()) if a.init else None
    corpora = []

    def corpus():
        corpora.append(load_file(wait_for(a.corpus)))
        return corpora[0]

    target, history, passes = pretrain(TargetConfig(), corpus, device, a.seconds, a.steps, lr=a.lr, init=init)
    compile_layers(False)
    write_target(a.out, target, f"{a.corpus.rsplit('/', 1)[0]}/tokenizer.json")
    report = {"loss": history, "passes": passes, "held_out_loss": HeldOut(corpora[0], 8, 1024, device)(target), "seconds": round(time.time() - began, 1)}
    log("held-out loss", report["held_out_loss"], "passes", passes)
    json.dump(report, open(f"{a.out}/pretrain.json", "w"))
    show_answers(target, f"{a.out}/tokenizer.json", [2, 0], 3, device)
