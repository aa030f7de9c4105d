"""Batches for drafter training, from two sources with one interface: rows run through the target now, or records on disk.

`batch(corpus_share)` gives ids [B, L], prompt, end, hard [B], hidden [B, L, H] (after the final norm) and taps [B, L, n*H].
Rows are kept in length buckets so that little is spent on padding. The record format is described in training/README.md.
"""
import glob
import json

import torch
import torch.nn.functional as F
from safetensors import safe_open

from .model import amp

BUCKETS = (128, 256, 448)
SHARE = (0.52, 0.26, 0.22)  # of self-generated rows: code, math, chat
CORPUS_SHARE = {"code_inst": 0.25, "code_more": 0.2, "code_raw": 0.15, "math": 0.15, "chat": 0.1, "chat_more": 0.1, "prose": 0.05}


class Batch:
    def __init__(self, ids, prompt, end, hard, hidden, taps):
        self.ids, self.prompt, self.end, self.hard, self.hidden, self.taps = ids, prompt, end, hard, hidden, taps

    def anchors(self, count):
        """[B, count] random answer positions whose token is known and that have at least one token after them."""
        u = torch.rand(len(self.ids), count, device=self.ids.device)
        return self.prompt[:, None] + (u * (self.end - 1 - self.prompt).clamp(min=1)[:, None].float()).long()


def corpus_rows(corpus, marker, device, each=40000, length=BUCKETS[-1], window=BUCKETS[1]):
    """Corpus text as rows with soft labels. `marker`: the token ids that open an answer. Adds `weight` and `part`."""
    out = []
    for part, share in CORPUS_SHARE.items():
        ids, starts = corpus[f"train.{part}.ids"].to(device), corpus[f"train.{part}.starts"].to(device).long()
        if ids.numel() < length + 2:
            continue
        after = torch.cat([starts[1:], torch.tensor([ids.numel()], device=device)])
        if part in ("code_raw", "prose"):
            starts = torch.randint(ids.numel() - window, (each,), device=device)
            end = torch.full_like(starts, window)
        else:
            pick = torch.randperm(len(starts), device=device)[:each]
            starts, end = starts[pick], (after[pick] - starts[pick]).clamp(max=length)
        rows = ids[(starts[:, None] + torch.arange(length, device=device)).clamp(max=ids.numel() - 1)]
        rows = torch.where(torch.arange(length, device=device) < end[:, None], rows, 0).to(torch.int16)
        if part in ("code_raw", "prose"):
            prompt = torch.full_like(end, 16)
        else:
            hit = torch.stack([rows[:, i : length - len(marker) + 1 + i] == m for i, m in enumerate(marker)]).all(0)
            prompt = torch.where(hit.any(1), hit.int().argmax(1) + len(marker), length)
        ok = end - prompt >= 6
        out.append((rows[ok], prompt[ok], end[ok], torch.zeros_like(end[ok]), torch.full((int(ok.sum()),), share / max(1, int(ok.sum())), device=device)))
    return tuple(torch.cat(x) for x in zip(*out)) if out else None


def weights_of(work):
    """Per-row weights so that each workload has its share."""
    w = torch.zeros(len(work), device=work.device)
    for i, share in enumerate(SHARE):
        mine = work == i
        if mine.any():
            w[mine] = share / mine.sum()
    return w / w.sum()


class Live:
    """Rows from generate (and corpus text), run through the target for every batch."""

    def __init__(self, target, taps, rows, device, corpus=None, tokens=49152):
        self.target, self.taps, self.device, self.tokens = target, taps, device, tokens
        own = tuple(rows[k].to(device) for k in ("ids", "prompt", "end", "hard")) + (weights_of(rows["work"].to(device)),)
        self.sources = [self.bucket(own)] + ([self.bucket(corpus)] if corpus else [])

    def bucket(self, rows):
        ids, prompt, end, hard, weight = rows
        length, out, low = ids.shape[1], [], 0
        for L in [b for b in BUCKETS if b < length] + [length]:
            mine = ((end > low) & (end <= L)).nonzero()[:, 0]
            low = L
            if len(mine):
                B = max(2, self.tokens // L)
                out.append((L, B, weight[mine].sum().item() / B, weight[mine], [ids[mine, :L], prompt[mine].long(), end[mine].long(), hard[mine]]))
        return out

    def batch(self, corpus_share=0.0):
        source = self.sources[-1] if len(self.sources) > 1 and torch.rand(1).item() < corpus_share else self.sources[0]
        L, B, _, weight, rows = source[int(torch.multinomial(torch.tensor([b[2] for b in source]), 1))]
        pick = torch.multinomial(weight, B, replacement=True)
        ids, prompt, end, hard = (r[pick] for r in rows)
        with torch.no_grad(), amp(self.device):
            out = self.target(ids.long(), taps=self.taps)
            hidden, taps = out if self.taps else (out, None)
        return Batch(ids.long(), prompt, end, hard, hidden, taps)


class Reused:
    """Batches of a source, each used about `times` times at different anchors: the target runs once for all of them."""

    def __init__(self, source, keep=160, times=3):
        self.source, self.keep, self.times, self.pool, self.owed = source, keep, times, [], 1.0

    def batch(self, corpus_share=0.0):
        self.owed += 1 / self.times
        if len(self.pool) < 8 or self.owed >= 1:
            self.owed -= 1
            fresh = self.source.batch(corpus_share)
            if len(self.pool) < self.keep:
                self.pool.append(fresh)
            else:
                self.pool[int(torch.randint(self.keep, ()))] = fresh
            return fresh
        return self.pool[int(torch.randint(len(self.pool), ()))]


class Recorded:
    """Records written by an engine (`straw trace --train-records`): nothing of the target runs here."""

    def __init__(self, folder, device, rows=32):
        self.device, self.rows, self.records = device, rows, []
        for path in sorted(glob.glob(f"{folder}/*.safetensors")):
            with safe_open(path, "pt") as f:
                meta = f.metadata() or {}
                if meta.get("format") != "straw-train-records" or meta.get("version") != "1":
                    raise ValueError(f"{path}: metadata says format {meta.get('format')!r} version {meta.get('version')!r}, expected straw-train-records version 1")
                t = {k: f.get_tensor(k) for k in f.keys()}
                self.taps = tuple(json.loads(meta["taps"]))
                hard = float(meta["temperature"]) == 0
            at = t["offsets"].tolist()
            for i, (a, b) in enumerate(zip(at, at[1:])):
                self.records.append((t["tokens"][a:b].long(), int(t["prompt_lengths"][i]), t["hidden"][a:b], t["taps"][a:b], int(hard)))
        if not self.records:
            raise FileNotFoundError(f"{folder}: no records")

    def batch(self, corpus_share=0.0):
        chosen = [self.records[i] for i in torch.randint(len(self.records), (self.rows,)).tolist()]
        L = -(-max(len(r[0]) for r in chosen) // 64) * 64
        pad = lambda x: F.pad(x, (0, 0) * (x.dim() - 1) + (0, L - len(x)))
        stack = lambda i: torch.stack([pad(r[i]) for r in chosen]).to(self.device)
        number = lambda x: torch.tensor(x, device=self.device)
        hidden = stack(2)
        dtype = torch.bfloat16 if hidden.is_cuda else torch.float32
        return Batch(stack(0), number([r[1] for r in chosen]), number([len(r[0]) for r in chosen]), number([r[4] for r in chosen]), hidden.to(dtype), stack(3).to(dtype))
