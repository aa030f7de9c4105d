"""train_mtp: the multi-token-prediction head, trained on the chains it will draft.

At depth k a row's query sees what it sees when drafting: true rows up to its anchor, then only its own k earlier draft
rows. Row t takes the target's hidden of t and token t+1 and predicts token t+2; depth k predicts token t+2+k.
"""
import argparse

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from .cli import add_source, open_source
from .drafters import MTP
from .load import fill, load_parts, log, stored
from .model import amp
from .optim import compiled, train


def chain_step(mtp, embedding, hidden, depth, past):
    """One depth for every anchor. embedding, hidden [B, T, H]; past: [(k, v)] of earlier depths. Returns hidden [B, T, H], past."""
    x = mtp.mix(embedding, hidden)
    layer, (B, T, _) = mtp.layers[0], x.shape
    q, k, v, gate = layer.self_attn.project(layer.input_layernorm(x), torch.arange(T, device=x.device) + depth)
    past = past + [(k, v)]
    r, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    wide = [(a.repeat_interleave(r, 1), b.repeat_interleave(r, 1)) for a, b in past]
    causal = torch.ones(T, T, device=x.device, dtype=torch.bool).tril()
    scores = [(q @ wide[0][0].mT).float().masked_fill(~causal, float("-inf"))] + [(q * a).sum(-1, keepdim=True).float() for a, _ in wide[1:]]
    p = (torch.cat(scores, -1) * scale).softmax(-1).to(q.dtype)
    o = p[..., :T] @ wide[0][1] + sum((p[..., T + i : T + i + 1] * b for i, (_, b) in enumerate(wide[1:])), torch.zeros((), dtype=q.dtype, device=x.device))
    o = layer.self_attn.out(o.transpose(1, 2).reshape(B, T, -1), gate)
    return mtp.norm(layer.feed(x + o)), past


def head_loss(draft, target, head, token, hard):
    """draft, target [..., H]; token [...]; hard [...]: loss and whether the guess is right."""
    logits = F.linear(draft, head.to(draft.dtype)).float()
    log_q = logits.log_softmax(-1)
    p = F.linear(target, head.to(target.dtype)).float().softmax(-1)
    loss = torch.where(hard > 0, -log_q.gather(-1, token[..., None])[..., 0], -(p * log_q).sum(-1))
    return loss, logits.argmax(-1) == token


def train_mtp(mtp, target, head, source, seconds=None, steps=None, depths=3, lr=2e-3, corpus_share=0.2, every=300, places=12288):
    step, loss_fn = chain_step, compiled(head_loss)  # chain_step stays eager: see the limits in README.md

    def loss_of(progress, show):
        b = source.batch(corpus_share * max(0.0, 1 - progress / 0.6))
        L = b.ids.shape[1]
        T = L - 1 - depths
        with amp(b.ids.device):
            at = torch.arange(T, device=b.ids.device)
            answer = (at + 2 > b.prompt[:, None]) & (at + 2 < b.end[:, None])
            flat = answer.flatten().nonzero()[:, 0]
            if len(flat) == 0:
                flat = torch.zeros(1, dtype=torch.long, device=b.ids.device)
            flat = flat[torch.randint(len(flat), (places,), device=flat.device)]
            row, col = flat // T, flat % T
            hidden, past, total, note = b.hidden[:, :T], [], 0.0, []
            alive = torch.ones(places, dtype=torch.bool, device=flat.device)
            for k in range(depths):
                hidden, past = step(mtp, target.embed(b.ids[:, 1 + k : 1 + k + T]), hidden, k, past)
                loss, right = loss_fn(hidden[row, col], b.hidden[row, col + 1 + k], head, b.ids[row, col + 2 + k], b.hard[row])
                inside = col + 2 + k < b.end[row]  # deeper drafts of the last places fall off the answer
                loss = (loss * inside).sum() / inside.sum().clamp(min=1)
                total, alive = total + loss * 0.9**k, alive & right & inside
                if show:
                    note.append((round(loss.item(), 3), round(alive.float().mean().item(), 3)))
        return total, note

    return train("mtp", mtp, lr, loss_of, log, seconds, steps, every)


def main(argv):
    p = argparse.ArgumentParser(prog="train_mtp", description=__doc__)
    add_source(p)
    p.add_argument("out", help="mtp.safetensors to write (names without the mtp. prefix)")
    p.add_argument("--depths", type=int, default=3)
    p.add_argument("--places", type=int, default=12288, help="answer positions a step")
    p.add_argument("--init", help="start from these parts (path without -00.safetensors)")
    a = p.parse_args(argv)
    target, _, source = open_source(a, ())
    mtp = MTP(target.c)
    if a.init:
        fill(mtp, load_parts(a.init), a.init)
    train_mtp(mtp.to(source.device), target, target.head_weight(), source, a.seconds, a.steps, a.depths, places=a.places)
    save_file(stored(mtp.state_dict()), a.out, metadata={"format": "pt"})
