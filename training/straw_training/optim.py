"""Muon for matrices, AdamW for the rest, linear warm-up and decay, and one timed training loop.

A run is bounded by seconds or by steps; the schedule follows the share of them that has passed, so that it always reaches its end.
"""
import os
import time

import torch


class Muon:
    """Batched over equal shapes; updates scaled to AdamW's usual size."""

    def __init__(self, params, lr, weight_decay=0.1, momentum=0.95):
        self.param_groups = [{"lr": lr}]
        self.weight_decay, self.momentum, self.params, groups = weight_decay, momentum, params, {}
        for p in params:
            groups.setdefault(tuple(p.shape), []).append(p)
        self.groups = [(ps, torch.zeros(len(ps), *shape, device=ps[0].device)) for shape, ps in groups.items()]

    @torch.no_grad()
    def step(self):
        lr = self.param_groups[0]["lr"]
        for params, moment in self.groups:
            G = torch.stack([p.grad for p in params])
            moment.lerp_(G, 1 - self.momentum)
            X = G.lerp(moment, self.momentum).bfloat16()
            tall = X.shape[1] > X.shape[2]
            X = X.mT if tall else X
            X = X / (X.norm(dim=(1, 2), keepdim=True) + 1e-7)
            for _ in range(5):
                A = X @ X.mT
                X = 3.4445 * X + (-4.7750 * A + 2.0315 * (A @ A)) @ X
            X = X.mT if tall else X
            torch._foreach_mul_(params, 1 - lr * self.weight_decay)
            torch._foreach_add_(params, list((X.float() * (-lr * 0.2 * max(X.shape[1:]) ** 0.5)).unbind(0)))

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None


def optimizers(module, lr):
    is_matrix = lambda n, p: p.dim() == 2 and "embed_tokens" not in n and "lm_head" not in n
    named = list(module.named_parameters())
    matrices, rest = [p for n, p in named if is_matrix(n, p)], [p for n, p in named if not is_matrix(n, p)]
    fused = named[0][1].device.type == "cuda"
    return [Muon(matrices, lr), torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, fused=fused)]


def rate(step, progress, warm=100):
    """Multiplier of the base rate: warm-up by steps, linear decay to zero by progress (0 to 1)."""
    return min(1.0, (step + 1) / warm) * (1.0 - progress)


def sync(device):
    if device != "cpu":
        torch.cuda.synchronize()


def compiled(f):
    return torch.compile(f, dynamic=False) if os.environ.get("COMPILE", "1") == "1" and torch.cuda.is_available() else f


def train(name, module, lr, loss_of, log, seconds=None, steps=None, every=500, warm=100):
    """Run loss_of(progress, show) -> (loss, note) for `seconds` or `steps`; returns [(step, seconds, note)]."""
    device = next(module.parameters()).device.type
    opts = optimizers(module, lr)
    base = [[g["lr"] for g in o.param_groups] for o in opts]
    start, history = time.time(), []
    params, step, progress = list(module.parameters()), 0, 0.0
    while progress < 1.0:
        show = step % every == 0
        loss, note = loss_of(progress, show)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        for o, b in zip(opts, base):
            for g, x in zip(o.param_groups, b):
                g["lr"] = x * rate(step, progress, warm)
            o.step()
            o.zero_grad(set_to_none=True)
        if show:
            history.append((step, round(time.time() - start, 1), note))
            log(name, step, note)
        step += 1
        if not steps and step % 32 == 0:
            sync(device)  # the clock must not run ahead of the work
        progress = step / steps if steps else min(1.0, (time.time() - start) / seconds)
    log(name, "done after", step, "steps,", round(time.time() - start, 1), "s")
    return history
