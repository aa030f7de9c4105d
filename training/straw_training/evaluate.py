"""evaluate: tokens per target pass, walked from start to end over the target's own answers, and held-out loss.

tau counts emitted tokens per pass, the bonus token included; the first answer token (prompt pass) is not counted. Tree
budgets count drafted nodes, the root not. T > 0: the answer is a sample of the target and a draft is kept where it equals
the sample (sample-and-match, drafts chosen without the sampler's noise). Tie rules and kernels differ from an engine's.
"""
import argparse
import heapq
import json
import os
import random

import torch
from safetensors.torch import load_file

from .decode import answers
from .drafters import block_inputs
from .load import device_of, load_dflash, load_mtp, load_target, load_weaver, log
from .model import amp
from .pretrain import held_out_loss
from .train_mtp import chain_step
from .train_weaver import residual, shortlist

NEW = {"code": 192, "math": 144, "chat": 192}
WIDTH = 6  # children of a node that enter the frontier


class Drafted:
    """One block per live row: shortlists along the block and what the Weaver needs."""

    def __init__(self, m, ids, end, cur, hidden, taps):
        self.m = m
        block, qpos, kpos, mask, labels = block_inputs(m.target, m.dflash.c, ids, cur[:, None], end)
        self.hidden = m.dflash(block, taps, qpos, kpos, mask)[:, 1:]
        self.labels = labels[:, 0]
        self.size = m.weaver.c.candidate_pool_size if m.weaver else 16
        self.scores, self.candidates = shortlist(self.hidden, m.head, self.size)
        self.root = hidden.gather(1, (cur - 1)[:, None, None].expand(-1, 1, hidden.shape[-1]))

    def chain(self):
        return (self.candidates[..., 0] == self.labels[:, 1:]).long().cumprod(1).sum(1)

    def edge_scores(self, live, paths, depth):
        """Log-probabilities over the shortlist after each path (list of token tuples, root first); best WIDTH and their tokens."""
        c = self.candidates[live, depth]
        s = self.scores[live, depth]
        if self.m.weaver:
            P = self.hidden.shape[1]
            padded = torch.tensor([list(p) + [0] * (P - len(p)) for p in paths], device=c.device)
            q = self.m.weaver(self.root[live], self.hidden[live], self.m.target.embed(padded))
            q = q[torch.arange(len(live), device=c.device), depth]
            s = s + residual(q[:, None], self.m.head, c[:, None])[:, 0]
        v, i = s.log_softmax(-1).topk(min(WIDTH, s.shape[-1]), -1)
        return v.tolist(), c.gather(1, i).tolist()

    def trees(self, budgets):
        """Accepted drafts of the best-first tree at each budget; one growth serves all budgets. [rows, len(budgets)]"""
        labels, P, R = self.labels.tolist(), self.hidden.shape[1], len(self.labels)
        heaps, rank, uid = [[(0.0, 0, ())] for _ in range(R)], [{} for _ in range(R)], 1
        for n in range(max(budgets) + 1):  # node 0 is the root
            live, paths, costs = [], [], []
            for r in range(R):
                if heaps[r]:
                    cost, _, path = heapq.heappop(heaps[r])
                    rank[r][path] = n
                    if len(path) < P and n < max(budgets):
                        live.append(r), paths.append((labels[r][0],) + path), costs.append(cost)
            if not live:
                break
            at = torch.tensor(live, device=self.hidden.device)
            depth = torch.tensor([len(p) - 1 for p in paths], device=self.hidden.device)
            for r, path, cost, lps, tokens in zip(live, paths, costs, *self.edge_scores(at, paths, depth)):
                for lp, t in zip(lps, tokens):
                    heapq.heappush(heaps[r], (cost - lp, uid, path[1:] + (t,)))
                    uid += 1
        out = torch.zeros(R, len(budgets), dtype=torch.long)
        for r in range(R):
            for i, b in enumerate(budgets):
                n, truth = 0, tuple(labels[r][1:])
                while n < P and truth[n] >= 0 and rank[r].get(truth[: n + 1], 10**9) <= b:
                    n += 1
                out[r, i] = n
        return out


class Models:
    def __init__(self, target, dflash=None, weaver=None, mtp=None):
        self.target, self.dflash, self.weaver, self.mtp, self.head = target, dflash, weaver, mtp, target.head_weight()


def walk(prompt, end, methods, accepted_of):
    """Passes that each method needs in all, when accepted_of(rows, cur) [n, methods] drafts are accepted at position cur. All walks go in step."""
    N, V, device = len(prompt), methods, prompt.device
    row, method = torch.arange(N, device=device).repeat_interleave(V), torch.arange(V, device=device).repeat(N)
    cur, last, passes = prompt[row], end[row] - 1, torch.zeros(N * V, dtype=torch.long, device=device)
    while True:
        live = (cur < last).nonzero()[:, 0]
        if not len(live):
            return passes.view(N, V).sum(0).tolist()
        passes[live] += 1
        accepted = accepted_of(row[live], cur[live]).gather(1, method[live, None])[:, 0]
        cur[live] = torch.minimum(cur[live] + accepted + 1, last[live])


@torch.no_grad()
def tokens_per_pass(m, ids, prompt, end, budgets, depths=(1, 2, 3)):
    """{method: tau} over complete answers ids [N, L]. Every anchor's result is computed once and shared by all walks."""
    with amp(ids.device):
        taps = m.dflash.c.taps if m.dflash else ()
        out = m.target(ids, taps=taps) if taps else (m.target(ids), None)
        hidden, features = out
        total, cache = (end - prompt - 1).sum().item(), {}

        def at(rows, cur):
            """[rows, 1 + budgets] accepted drafts, computed for places not seen before."""
            need = sorted({k for k in zip(rows.tolist(), cur.tolist()) if k not in cache})
            if need:
                r, c = torch.tensor(need, device=ids.device).unbind(1)
                d = Drafted(m, ids[r], end[r], c, hidden[r], features[r])
                found = torch.cat([d.chain()[:, None].cpu(), d.trees(budgets)], 1)
                cache.update({k: v for k, v in zip(zip(r.tolist(), c.tolist()), found)})
            return torch.stack([cache[k] for k in zip(rows.tolist(), cur.tolist())]).to(ids.device)

        names = ["dflash_chain"] + [f"{'weaver' if m.weaver else 'dflash'}_tree_{b}" for b in budgets]
        passes = walk(prompt, end, len(names), at) if m.dflash else []
        if m.mtp:
            right = mtp_accepted(m, ids, hidden, max(depths)).long().cumprod(-1)
            accepted = torch.stack([right[..., :k].sum(-1) for k in depths], -1)
            names = names[: len(passes)] + [f"mtp_{k}" for k in depths]
            passes = passes + walk(prompt, end, len(depths), lambda r, c: accepted[r, c - 1])
        result = {name: round(total / n, 3) for name, n in zip(names, passes)}
    return result


def mtp_accepted(m, ids, hidden, depths):
    """[N, T, depths]: at anchor row t (root token t+1) is the k-th drafted token equal to token t+2+k?"""
    T = ids.shape[1] - 1 - depths
    token, h, past, out = ids[:, 1 : 1 + T], hidden[:, :T], [], []
    for k in range(depths):
        h, past = chain_step(m.mtp, m.target.embed(token), h, k, past)
        token = m.target.head(h).argmax(-1)
        out.append(token == ids[:, 2 + k : 2 + k + T])
    return torch.nn.functional.pad(torch.stack(out, -1), (0, 0, 0, ids.shape[1] - T))


def prompts_of(path, workload, tokenizer, longest):
    rows = [json.loads(l) for l in open(path, encoding="utf8")]
    texts = [f"<|im_start|>user\n{r['prompt']}<|im_end|>\n<|im_start|>assistant\n" for r in rows if r["workload"] == workload]
    return [p for p in (e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)) if len(p) <= longest]


def split(ids, starts):
    at = starts.tolist() + [len(ids)]
    return [ids[a:b].tolist() for a, b in zip(at, at[1:])]


def evaluate_prompts(m, prompts, workload, tokens, device, temperature=0.0, budgets=(4, 8, 16, 32), batch=32):
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    padded = torch.tensor([p + [0] * (int(lengths.max()) - len(p)) for p in prompts], device=device)
    ids, end = answers(m.target, padded, lengths, NEW[workload], temperature, tokens["ends"], tokens["banned"], device)
    ok = end - lengths >= 6
    ids, prompt, end = ids[ok], lengths[ok], end[ok]
    ids = torch.nn.functional.pad(ids, (0, -ids.shape[1] % 256))  # few different lengths: kernels tune themselves for each
    row = tokens_per_pass(m, ids, prompt, end, budgets)
    row.update(answers=int(ok.sum()), mean_answer_tokens=round((end - prompt).float().mean().item(), 1))
    return row


def main(argv):
    p = argparse.ArgumentParser(prog="evaluate", description=__doc__)
    p.add_argument("model", help="directory with target, mtp.*, dflash/ and weaver/ (what is missing is skipped)")
    p.add_argument("--corpus", help="corpus.safetensors of prepare: held-out prompts and held-out loss")
    p.add_argument("--prompts", help="prompts.jsonl")
    p.add_argument("--workloads", default="code,math,chat")
    p.add_argument("--temperatures", default="0,1")
    p.add_argument("--budgets", default="4,8,16,32", help="drafted nodes, root not counted")
    p.add_argument("--count", type=int, default=32, help="answers per workload")
    p.add_argument("--longest", type=int, default=320, help="prompts with more tokens are left out")
    p.add_argument("--out", help="JSON file to write")
    a = p.parse_args(argv)
    device = device_of()
    target, tokens = load_target(a.model, device)
    part = lambda f, load: load(f, device) if os.path.exists(f"{f}/config.json") else None
    try:
        mtp = load_mtp(a.model, target, device)
    except KeyError:
        mtp = None
    m = Models(target, part(f"{a.model}/dflash", load_dflash), part(f"{a.model}/weaver", load_weaver), mtp)
    corpus = load_file(a.corpus) if a.corpus else None
    result = {"held_out_loss": held_out_loss(target, corpus, device)} if corpus else {}
    log(result)
    budgets = [int(b) for b in a.budgets.split(",")]
    for source in [s for s in ("held-out", "prompts") if (corpus if s == "held-out" else a.prompts)]:
        for w in a.workloads.split(","):
            if source == "held-out":
                prompts = [x for x in split(corpus[f"held_prompts.{w}.ids"], corpus[f"held_prompts.{w}.starts"]) if len(x) <= a.longest]
            else:
                from tokenizers import Tokenizer
                prompts = prompts_of(a.prompts, w, Tokenizer.from_file(f"{a.model}/tokenizer.json"), a.longest)
            prompts = random.Random(5).sample(prompts, min(a.count, len(prompts)))
            for t in a.temperatures.split(","):
                torch.manual_seed(0)
                row = evaluate_prompts(m, prompts, w, tokens, device, float(t), budgets)
                result[f"{source} {w} T={t}"] = row
                log(source, w, f"T={t}", row)
                if a.out:
                    json.dump(result, open(a.out, "w"), indent=1)
