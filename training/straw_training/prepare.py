"""prepare: text to token streams, prompts and held-out sets, with a manifest of counts, hashes and what was dropped.

Input is a folder that may hold text parts (`code_inst.xz`, `code_raw*.xz`, `math.xz`, `chat.xz`, `prose.xz`: documents
separated by a zero byte), Python packages (`packages/*.whl|*.tar.gz`) and WordNet (`wordnet/data.*`). What is missing is
rebuilt from packages and templates or left out. Output: `corpus.safetensors`, `tokenizer.json`, `manifest.json`.
"""
import argparse
import glob
import json
import lzma
import os
import random

import numpy as np
from safetensors.numpy import save_file

from . import chat_text, code_text, math_text
from .text import Grams, benchmark_grams, cap_templates, decontaminate, digest, drop_near_duplicates, members, prompt_of

HELD = 500
END = "<|endoftext|>"
SPECIAL = [END, "<|im_start|>", "<|im_end|>", "<|mask|>", "<think>", "</think>", "<|pad|>"]


def read_parts(folder):
    parts = {}
    for path in sorted(glob.glob(f"{folder}/*.xz")):
        name = os.path.basename(path)[:-3].rstrip("0123456789")
        parts.setdefault(name, []).extend(x for x in lzma.open(path).read().decode("utf8").split("\0") if x)
    return parts


def package_code(folder):
    """(files, functions) of every package in the folder; duplicates of whole files removed."""
    files = {s: None for p in sorted(glob.glob(f"{folder}/packages/*")) if p.endswith((".whl", ".zip", ".tar.gz")) for s in code_text.sources(p)}
    return list(files), [f for s in files for f in code_text.functions(s)]


def code_documents(functions, rng, documented=1.0, undocumented=0.5):
    """Question-answer documents of every kind for each function: {kind: documents}."""
    out = {"complete": [], "test": [], "signature": [], "explain": []}
    kinds = {"complete": (code_text.complete_pair, documented), "test": (code_text.test_pair, 1.0),
             "signature": (code_text.signature_pair, undocumented), "explain": (code_text.explain_pair, documented)}
    for f in functions:
        for kind, (make, share) in kinds.items():
            if rng.random() < share:
                d = make(f, rng)
                if d:
                    out[kind].append(d)
    return out


def math_documents(given, rng, cap=1500, variations=4):
    """Repeated documents are taken for worked problems: they get varied; the rest are templates: they get capped."""
    given, dropped = cap_templates(given, cap)
    count = {}
    for d in given:
        count[d] = count.get(d, 0) + 1
    problems = [d for d, c in count.items() if c > 1]
    varied = []
    for d in problems:
        qa = math_text.question_answer(d)
        for _ in range(variations if qa else 0):
            v = math_text.vary(*qa, rng)
            if v and v[0] != qa[0]:
                varied.append(math_text.chat(*v))
    docs = [math_text.with_request(d, rng) for d in varied] + problems + [math_text.with_request(d, rng) for d in problems]
    return docs + [d for d, c in count.items() if c == 1], {"problems": len(problems), "varied": len(varied), "over the template cap": dropped}


def holds_held_out(documents, held, share=0.5, n=8):
    """Drop documents that contain at least `share` of the n-grams of one held-out document."""
    grams, owner, size = Grams(n), {}, []
    for i, d in enumerate(held):
        g = np.unique(grams(d))
        size.append(max(1, len(g)))
        owner.update((int(x), i) for x in g)
    known, keep = np.array(sorted(owner), dtype=np.uint64), []
    for d in documents:
        g = np.unique(grams(d))
        hits = {}
        for x in g[members(g, known)]:
            hits[owner[int(x)]] = hits.get(owner[int(x)], 0) + 1
        if not any(c >= share * size[i] for i, c in hits.items()):
            keep.append(d)
    return keep, len(documents) - len(keep)


def train_tokenizer(samples, path, size=8192):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    split = Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(split, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(samples, trainers.BpeTrainer(vocab_size=size, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.save(path)


class Encoder:
    def __init__(self, path):
        from tokenizers import Tokenizer
        self.t = Tokenizer.from_file(path)
        self.end = self.t.token_to_id(END)

    def __call__(self, documents, end=True):
        """(ids int16 [tokens], starts int32 [documents])."""
        ids, starts, at = [], [], 0
        for i in range(0, len(documents), 2048):
            for e in self.t.encode_batch_fast(documents[i : i + 2048], add_special_tokens=False):
                x = np.array(e.ids + [self.end] * end, dtype=np.int16)
                ids.append(x)
                starts.append(at)
                at += len(x)
        return np.concatenate(ids) if ids else np.zeros(0, np.int16), np.array(starts, np.int32)


def prepare(source, out, benchmark, tokenizer=None, limit=None, seed=7):
    os.makedirs(out, exist_ok=True)
    rng, log = random.Random(seed), {}
    parts = read_parts(source)
    for name in sorted(parts):  # same order and generator as the first straw-tiny: chat and code_inst get the same held-out documents
        rng.shuffle(parts[name])
        parts[name] = parts[name][:limit]
    held = {w: parts.get(p, [])[:HELD] for w, p in (("chat", "chat"), ("code", "code_inst"))}
    for w, p in (("chat", "chat"), ("code", "code_inst")):
        known = set(held[w])
        parts[p] = [d for d in parts.get(p, [])[HELD:] if d not in known]

    files, packaged = package_code(source)
    raw = parts.get("code_raw", []) + files
    rng.shuffle(raw)
    functions = [f for s in parts.get("code_raw", []) for f in code_text.functions(s)]
    more = code_documents(functions, rng)
    own = code_documents(packaged, rng, undocumented=1.0)
    write = [d for d in (code_text.write_pair(f, rng) for f in packaged) if d]
    problems = parts.get("math") or [math_text.templated(rng) for _ in range(60000)]
    docs, log["math"] = math_documents(problems, rng)
    rng.shuffle(docs)
    held["math"], docs = docs[:HELD], docs[HELD:]
    gloss = list(chat_text.wordnet(f"{source}/wordnet")) if os.path.isdir(f"{source}/wordnet") else []
    gloss = rng.sample(gloss, min(len(gloss), 60000))
    sets = {
        "code_inst": parts.get("code_inst", []) + write,
        "code_more": [d for k in ("complete", "test", "signature") for d in more[k] + own[k]],
        "code_raw": raw,
        "math": docs,
        "chat": parts["chat"],
        "chat_more": more["explain"] + own["explain"] + [chat_text.define_pair(w, g, rng) for w, g in gloss],
        "prose": parts.get("prose", []),
    }
    grams, forbidden = benchmark_grams(benchmark)
    for name, d in sets.items():
        note = log.setdefault(name, {})
        note["documents"] = len(d)
        d, note["in the benchmark"] = decontaminate(d, grams, forbidden)
        d, note["near duplicates"] = drop_near_duplicates(d) if name not in ("math", "code_raw", "prose") else (list(dict.fromkeys(d)), 0)
        w = {"code_inst": "code", "code_more": "code", "code_raw": "code", "chat": "chat", "chat_more": "chat"}.get(name)
        if w:
            d, note["holds a held-out document"] = holds_held_out(d, held[w])
        rng.shuffle(d)
        sets[name] = d
        print(name, note, flush=True)

    path = f"{out}/tokenizer.json"
    if tokenizer:
        open(path, "wb").write(open(tokenizer, "rb").read())
    else:
        train_tokenizer([x[:20000] for d in sets.values() for x in d[:8000]], path)
    encode, tensors = Encoder(path), {}
    for name, d in sets.items():
        ids, starts = encode(d)
        tensors[f"train.{name}.ids"], tensors[f"train.{name}.starts"] = ids, starts
        log[name].update(kept=len(d), tokens=len(ids), sha256=digest(d))
    for w, d in held.items():
        tensors[f"held.{w}.ids"], tensors[f"held.{w}.starts"] = encode(d)
    words = [w for w, _ in gloss] or ["music", "water", "history", "computers"]
    prompts = {
        "code": [prompt_of(d) for k in ("code_inst", "code_more") for d in sets[k]] + [code_prompt(s, rng) for s in raw for _ in range(2)],
        "math": [prompt_of(d) for d in sets["math"]],
        "chat": [prompt_of(d) for k in ("chat", "chat_more") for d in sets[k]] + second_turns(sets["chat"])
                + chat_text.open_requests(words, 40000 if not limit else 50, rng) + chat_text.prose_questions(sets["prose"], 30000, rng),
    }
    for w, p in prompts.items():
        p, dropped = decontaminate(list(dict.fromkeys(x for x in p if x)), grams, forbidden)
        rng.shuffle(p)
        tensors[f"prompts.{w}.ids"], tensors[f"prompts.{w}.starts"] = encode(p, end=False)
        tensors[f"held_prompts.{w}.ids"], tensors[f"held_prompts.{w}.starts"] = encode([prompt_of(d) for d in held[w] if prompt_of(d)], end=False)
        log[f"prompts {w}"] = {"kept": len(p), "in the benchmark": dropped}
    save_file(tensors, f"{out}/corpus.safetensors")
    json.dump(log, open(f"{out}/manifest.json", "w"), indent=1)
    return log


def code_prompt(source, rng):
    """The first lines of a random stretch of a file, as plain text to be continued."""
    lines = source.split("\n")
    at = rng.randrange(max(1, len(lines) - 20))
    return "\n".join(lines[at : at + rng.randint(3, 12)])[:500] + "\n"


def second_turns(documents):
    """Prompts that end before the second answer of a dialogue."""
    cut = "<|im_start|>assistant\n"
    return [cut.join(d.split(cut)[:2]) + cut for d in documents if d.count(cut) > 1]


def main(argv):
    p = argparse.ArgumentParser(prog="prepare", description=__doc__)
    p.add_argument("source")
    p.add_argument("out")
    p.add_argument("--benchmark", required=True, help="prompts.jsonl that must stay out of the text")
    p.add_argument("--tokenizer", help="tokenizer.json to use (default: train one)")
    p.add_argument("--limit", type=int, help="documents per part, for a test")
    a = p.parse_args(argv)
    print(json.dumps(prepare(a.source, a.out, a.benchmark, a.tokenizer, a.limit), indent=1))
