"""generate: the target answers prompts itself, greedily and at several temperatures; rows for training drafters.

A row is `ids [L]` with `prompt` (length of the prompt), `end` (first place after the answer), `hard` (1: greedy answer, the
token itself is the label; 0: sampled, the target's distribution is the label) and `work` (0 code, 1 math, 2 chat).
"""
import argparse
import time

import torch
from safetensors.torch import load_file, save_file

from . import gdn
from .decode import Decoder, check_step, compile_layers
from .load import device_of, load_target, log, marker_of

WORK = ("code", "math", "chat")
SHARE = {"code": 0.45, "math": 0.2, "chat": 0.35}
NEW = {"code": 256, "math": 160, "chat": 192}
TEMPERATURES = (0.0, 0.0, 0.0, 0.7, 1.0)
LENGTH, PROMPT = 448, 192
FOCUS = {"chat": ("chat", 0.5)}  # workload: (part, share of its prompts that open documents of this part)


def padded(ids, starts, longest=PROMPT, least=4, width=None):
    """Concatenated prompts to a matrix [N, width] and lengths [N]; longer and shorter ones are left out."""
    starts = starts.long()
    length = torch.diff(starts, append=torch.tensor([ids.numel()], device=ids.device))
    keep = (length >= least) & (length <= longest)
    starts, length = starts[keep], length[keep]
    at = torch.arange(width or longest, device=ids.device)
    m = ids[(starts[:, None] + at).clamp(max=ids.numel() - 1)]
    return torch.where(at < length[:, None], m, 0), length


def openings(corpus, part, marker, device):
    """Documents of a part cut after the marker that opens the first answer: matrix and lengths as from `padded`."""
    m, _ = padded(corpus[f"train.{part}.ids"].to(device), corpus[f"train.{part}.starts"].to(device), longest=10**9, width=PROMPT)
    hit = torch.stack([m[:, i : PROMPT - len(marker) + 1 + i] == x for i, x in enumerate(marker)]).all(0)
    n = hit.int().argmax(1) + len(marker)
    return m[hit.any(1)], n[hit.any(1)]


def queue(corpus, count, device, marker=None, seed=0):
    """Prompts in the order they will be answered: matrix, lengths, workload, temperature, limit."""
    g = torch.Generator().manual_seed(seed)
    work = torch.multinomial(torch.tensor([SHARE[w] for w in WORK]), count, True, generator=g)
    prompts, lengths = torch.zeros(count, PROMPT, dtype=torch.int16, device=device), torch.zeros(count, dtype=torch.long, device=device)
    for i, w in enumerate(WORK):
        m, n = padded(corpus[f"prompts.{w}.ids"].to(device), corpus[f"prompts.{w}.starts"].to(device))
        mine = (work == i).nonzero()[:, 0]
        if marker and w in FOCUS:
            part, share = FOCUS[w]
            m2, n2 = openings(corpus, part, marker, device)
            more = torch.randint(len(n2), (int(len(n) * share / (1 - share)),), generator=g).to(device)
            m, n = torch.cat([m, m2[more]]), torch.cat([n, n2[more]])
        order = torch.cat([torch.randperm(len(n), generator=g) for _ in range(max(1, -(-len(mine) // len(n))))])[: len(mine)].to(device)
        prompts[mine.to(device)], lengths[mine.to(device)] = m[order].to(torch.int16), n[order]
    temperature = torch.tensor(TEMPERATURES)[torch.randint(len(TEMPERATURES), (count,), generator=g)].to(device)
    work = work.to(device)
    limit = (lengths + torch.tensor([NEW[w] for w in WORK], device=device)[work] - 1).clamp(max=LENGTH - 1)
    return prompts, lengths, work, temperature, limit


def generate(target, corpus, device, seconds, rows=6144, count=600000, ends=(0, 2), banned=3, marker=None, seed=0):
    prompts, lengths, work, temperature, limit = queue(corpus, count, device, marker, seed)
    rows = min(rows, count)
    d = Decoder(target, rows, LENGTH, ends, banned, device)
    d.advance(0)
    owner, at, out, start, tokens = torch.arange(rows, device=device), rows, [], time.time(), 0
    d.place(d.index, prompts[:rows].long(), lengths[:rows], limit[:rows], temperature[:rows])

    def harvest(which, end):
        q = owner[which]
        ids = torch.where(d.columns < end[:, None], d.out[which], ends[0]).to(torch.int16)
        ok = end - d.prompt[which] >= 6
        out.append([x[ok] for x in (ids, d.prompt[which], end, (temperature[q] == 0).long(), work[q])])
        return int((end - d.prompt[which])[ok].sum())

    shown = 0
    while time.time() - start < seconds and at < count:
        d.advance(16)
        done = d.done.nonzero()[:, 0]
        if not len(done):
            continue
        tokens += harvest(done, d.end[done])
        n = min(len(done), count - at)
        new, done = torch.arange(at, at + n, device=device), done[:n]
        owner[done], at = new, at + n
        d.place(done, prompts[new].long(), lengths[new], limit[new], temperature[new])
        if time.time() - start > shown:
            log(f"generate: {tokens/1e6:.2f}M answer tokens, {at} prompts started, {time.time()-start:.0f} s")
            shown += 20
    rest = (~d.done).nonzero()[:, 0]
    tokens += harvest(rest, torch.minimum(d.pos[rest] + 1, d.limit[rest]))
    ids, prompt, end, hard, work = (torch.cat(x) for x in zip(*out))
    log(f"generate: {len(ids)} rows, {tokens/1e6:.2f}M answer tokens, {time.time()-start:.0f} s;",
        {w: [int((work == i).sum()), round((end - prompt)[work == i].float().mean().item(), 1)] for i, w in enumerate(WORK) if (work == i).any()})
    return {"ids": ids, "prompt": prompt.int(), "end": end.int(), "hard": hard.int(), "work": work.int()}


def main(argv):
    p = argparse.ArgumentParser(prog="generate", description=__doc__)
    p.add_argument("target", help="target directory in Hugging Face layout")
    p.add_argument("corpus", help="corpus.safetensors of prepare")
    p.add_argument("out", help="rows file to write (.safetensors)")
    p.add_argument("--seconds", type=float, default=120)
    p.add_argument("--rows", type=int, default=6144, help="rows decoded at once")
    p.add_argument("--count", type=int, default=600000, help="prompts at most")
    a = p.parse_args(argv)
    device = device_of()
    target, tokens = load_target(a.target, device)
    gdn.setup(device, log)
    if device == "cuda":
        log("in-place step differs by", check_step(device))
    compile_layers()
    rows = generate(target, load_file(a.corpus), device, a.seconds, a.rows, a.count, tokens["ends"], tokens["banned"], marker_of(a.target))
    save_file({k: v.contiguous().cpu() for k, v in rows.items()}, a.out)
