"""train_dflash: the block drafter. At random anchors of an answer it predicts the next block_size - 1 tokens at once.

Greedy answers give hard labels; sampled answers and corpus text give the target's distribution at each place. Places
further from the anchor weigh less (exp(-(j-1)/decay)).
"""
import argparse

import torch
import torch.nn.functional as F

from .cli import add_source, open_source
from .drafters import DFlash, DFlashConfig, block_inputs
from .export import write_dflash
from .load import load_dflash, log
from .model import amp
from .optim import compiled, train

BLOCKS, DECAY = 3072, 7.0


def decayed(n, device):
    return torch.exp(-torch.arange(n, device=device) / DECAY)


def block_loss(draft, target, head, labels, hard):
    """draft, target [R, P, H] hidden; labels [R, P] (-100: none); hard [R]. Returns loss [R, P] and whether the first guess is right."""
    logits = F.linear(draft, head.to(draft.dtype)).float()
    log_q = logits.log_softmax(-1)
    p = F.linear(target, head.to(target.dtype)).float().softmax(-1)
    token = -log_q.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    loss = torch.where(hard[:, None] > 0, token, -(p * log_q).sum(-1))
    return loss, logits.argmax(-1) == labels


def draft(module, target, batch, count):
    """Draft blocks at `count` anchors a row: hidden [R, bs, H], labels [R, bs], target hidden that chose them [R, bs-1, H], root hidden [R, 1, H], hard [R]."""
    anchors = batch.anchors(count)
    block, qpos, kpos, mask, labels = block_inputs(target, module.c, batch.ids, anchors, batch.end)
    hidden = module(block, batch.taps, qpos, kpos, mask)
    bs, H, L = module.c.block_size, hidden.shape[-1], batch.ids.shape[1]
    at = (anchors[..., None] + torch.arange(-1, bs - 1, device=anchors.device)).clamp(max=L - 1).flatten(1)
    rows = batch.hidden.gather(1, at[..., None].expand(-1, -1, H)).view(-1, bs, H)
    return hidden.view(-1, bs, H), labels.flatten(0, 1), rows[:, 1:], rows[:, :1], batch.hard.repeat_interleave(count)


def anchors_per_row(batch, blocks):
    return max(1, blocks // len(batch.ids))


def mean(x, ok):
    return round((x * ok).sum().item() / max(1.0, ok.sum().item()), 3)


def train_dflash(module, target, head, source, seconds=None, steps=None, blocks=BLOCKS, lr=2e-3, corpus_share=0.2, every=500):
    loss_fn, step = compiled(block_loss), compiled(DFlash.forward)
    run = lambda *a: step(module, *a)
    run.c = module.c

    def loss_of(progress, show):
        batch = source.batch(corpus_share * max(0.0, 1 - progress / 0.6))
        with amp(batch.ids.device):
            hidden, labels, rows, _, hard = draft(run, target, batch, anchors_per_row(batch, blocks))
            labels = labels[:, 1:]
            loss, right = loss_fn(hidden[:, 1:], rows, head, labels, hard)
        ok = (labels >= 0).float()
        w = ok * decayed(labels.shape[1], labels.device)
        note = None
        if show:
            full = ok[:, -1] > 0
            note = {"loss": [mean(loss[:, i], ok[:, i]) for i in (0, 1, 3, 7)], "tokens per pass": round((right.float().cumprod(-1).sum(-1) + 1)[full].mean().item(), 2) if full.any() else None}
        return (loss * w).sum() / w.sum().clamp(min=1.0), note

    return train("dflash", module, lr, loss_of, log, seconds, steps, every)


def main(argv):
    p = argparse.ArgumentParser(prog="train_dflash", description=__doc__)
    add_source(p)
    p.add_argument("out", help="directory to write (z-lab layout)")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--intermediate", type=int, help="MLP width (default: the target's)")
    p.add_argument("--taps", default="1,4,6", help="target layers whose outputs are read")
    p.add_argument("--init", help="start from this directory")
    a = p.parse_args(argv)
    taps = tuple(int(x) for x in a.taps.split(","))
    target, tokens, source = open_source(a, taps)
    c = target.c
    module = load_dflash(a.init) if a.init else DFlash(DFlashConfig(
        hidden_size=c.hidden_size, taps=taps, num_hidden_layers=a.layers, num_attention_heads=c.num_attention_heads, num_key_value_heads=c.num_key_value_heads,
        head_dim=c.head_dim, intermediate_size=a.intermediate or c.intermediate_size, rope_theta=c.rope_theta, mask_token_id=tokens["banned"]))
    module.to(source.device).train()
    train_dflash(module, target, target.head_weight(), source, a.seconds, a.steps, a.blocks)
    write_dflash(a.out, module, c)
