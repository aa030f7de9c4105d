"""train_weaver: rescores DFlash's shortlists along a path; first teacher-forced, then on paths it chose itself.

Teacher-forced: the path is the answer, all depths at once. On-policy (the last part of the run, every second step): one
anchor a row, the path is sampled from the Weaver over the shortlists, the target reads the row with that path in it and
its distribution at every depth is the label. Needs a target that runs (rows, not records) for the second kind.
"""
import argparse

import torch
import torch.nn.functional as F

from .cli import add_source, open_source
from .drafters import Weaver, WeaverConfig
from .export import write_weaver
from .load import load_dflash, load_weaver, log
from .model import amp
from .optim import compiled, train
from .records import Batch
from .train_dflash import anchors_per_row, decayed, draft, mean


def shortlist(hidden, head, size):
    """[R, P, H] -> scores and ids of the best `size` tokens, [R, P, size]."""
    return F.linear(hidden, head.to(hidden.dtype)).float().topk(size, -1)


def residual(query, head, candidates):
    """<query, head[c]> for the candidates: [R, P, H], [R, P, K] -> [R, P, K] float."""
    return (F.embedding(candidates, head).to(query.dtype) @ query[..., None])[..., 0].float()


def pool_loss(weaver, root, hidden, path, scores, candidates, rows, labels, head, hard):
    """Cross-entropy over the shortlist: the label itself (hard) or the target's distribution restricted to the list."""
    s = scores + residual(weaver(root, hidden, path), head, candidates)
    log_q = s.log_softmax(-1)
    hit = candidates == labels[..., None]
    token = -(log_q * hit).sum(-1)
    p = residual(rows, head, candidates).softmax(-1)
    inside = hit.any(-1).float()
    soft = hard[:, None] == 0
    loss = torch.where(soft, -(p * log_q).sum(-1), token)
    return loss, (labels >= 0).float() * torch.where(soft, torch.ones_like(inside), inside), inside


@torch.no_grad()
def own_paths(weaver, target, batch, run, size, head):
    """A batch in which one stretch of every row is a path sampled from the Weaver; labels come from the target on it."""
    with amp(batch.ids.device):  # again, so that no cast made without gradients is remembered
        return _own_paths(weaver, target, batch, run, size, head)


def _own_paths(weaver, target, batch, run, size, head):
    anchors = batch.anchors(1)
    single = Batch(batch.ids, batch.prompt, batch.end, batch.hard, batch.hidden, batch.taps)
    single.anchors = lambda count: anchors
    hidden, labels, _, root, _ = draft(run, target, single, 1)
    scores, candidates = shortlist(hidden[:, 1:], head, size)
    R, P, _ = candidates.shape
    path = labels[:, :1]
    for depth in range(P - 1):
        padded = F.pad(path, (0, P - path.shape[1]))
        q = weaver(root, hidden[:, 1:], target.embed(padded))[:, depth : depth + 1]
        s = scores[:, depth] + residual(q, head, candidates[:, depth : depth + 1])[:, 0]
        pick = torch.multinomial(s.softmax(-1), 1)
        path = torch.cat([path, candidates[:, depth].gather(1, pick)], 1)
    ids, L = batch.ids.clone(), batch.ids.shape[1]
    at = anchors + torch.arange(P, device=ids.device)
    ids.scatter_(1, at.clamp(max=L - 1), torch.where(at < L, path, ids[:, -1:]))
    rows = target(ids).gather(1, at.clamp(max=L - 1)[..., None].expand(-1, -1, hidden.shape[-1]))
    labels = torch.where(at < L - 1, 0, -100)  # every depth inside the row counts; the label is the distribution
    return root, hidden[:, 1:], target.embed(path), scores, candidates, rows, labels, torch.zeros_like(batch.hard)


def train_weaver(weaver, dflash, target, head, source, seconds=None, steps=None, blocks=3072, lr=2e-3, own_after=0.7, corpus_share=0.2, every=300):
    forward, loss_fn = compiled(type(dflash).forward), compiled(pool_loss)
    run = lambda *a: forward(dflash, *a)
    run.c, size = dflash.c, weaver.c.candidate_pool_size
    turn = [0]

    def loss_of(progress, show):
        turn[0] += 1
        batch = source.batch(corpus_share * max(0.0, 1 - progress / 0.6))
        own = own_after is not None and progress >= own_after and turn[0] % 2 == 0
        with amp(batch.ids.device):
            with torch.no_grad():
                if own:
                    inputs = own_paths(weaver, target, batch, run, size, head)
                else:
                    hidden, labels, rows, root, hard = draft(run, target, batch, anchors_per_row(batch, blocks))
                    scores, candidates = shortlist(hidden[:, 1:], head, size)
                    inputs = root, hidden[:, 1:], target.embed(labels.clamp(min=0)[:, :-1]), scores, candidates, rows, labels[:, 1:], hard
            root, hidden, path, scores, candidates, rows, labels, hard = inputs
            loss, ok, inside = loss_fn(weaver, root, hidden, path, scores, candidates, rows, labels, head, hard)
        w = ok * decayed(labels.shape[1], labels.device)
        note = {"own" if own else "given": [mean(loss[:, i], ok[:, i]) for i in (0, 1, 3, 7)], "in pool": [mean(inside[:, i], (labels[:, i] >= 0).float()) for i in (0, 1, 3, 7)]} if show else None
        return (loss * w).sum() / w.sum().clamp(min=1.0), note

    return train("weaver", weaver, lr, loss_of, log, seconds, steps, every)


def main(argv):
    p = argparse.ArgumentParser(prog="train_weaver", description=__doc__)
    add_source(p)
    p.add_argument("dflash", help="directory of train_dflash")
    p.add_argument("out", help="directory to write")
    p.add_argument("--pool", type=int, default=16, help="shortlist size")
    p.add_argument("--dim", type=int, default=192)
    p.add_argument("--own-after", type=float, default=0.7, help="share of the run after which every second step is on-policy; 1 for never")
    p.add_argument("--init", help="start from this directory")
    a = p.parse_args(argv)
    dflash = load_dflash(a.dflash)
    target, _, source = open_source(a, dflash.c.taps)
    dflash.to(source.device).requires_grad_(False)
    weaver = load_weaver(a.init) if a.init else Weaver(WeaverConfig(
        target_hidden_size=target.c.hidden_size, model_dim=a.dim, max_depth=dflash.c.block_size - 1, candidate_pool_size=min(a.pool, target.c.vocab_size)))
    weaver.to(source.device).train()
    own = a.own_after if a.own_after < 1 and hasattr(source, "target") else None
    train_weaver(weaver, dflash, target, target.head_weight(), source, a.seconds, a.steps, a.blocks, own_after=own)
    write_weaver(a.out, weaver, target.c.vocab_size)
