"""Text hygiene: ChatML, word n-grams, decontamination and near-duplicate removal.

Documents are plain strings. Overlap is counted on lower-cased word n-grams; a training document that shares one
13-gram with a benchmark prompt or its reference answer is dropped.
"""
import hashlib
import json
import re

import numpy as np

ASSISTANT = "<|im_start|>assistant\n"
WORD = re.compile(r"\w+")


def chat(user, answer):
    return f"<|im_start|>user\n{user}<|im_end|>\n{ASSISTANT}{answer}<|im_end|>\n"


def prompt_of(document):
    """The part of a ChatML document up to its first answer, or None for plain text."""
    at = document.find(ASSISTANT)
    return document[: at + len(ASSISTANT)] if at >= 0 else None


def word_hash(word):
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


class Grams:
    """Hashes of word n-grams, vectorised per document. Word hashes are remembered between documents."""

    def __init__(self, n):
        self.n, self.words = n, {}
        self.factors = np.random.default_rng(n).integers(1, 2**63, n, dtype=np.uint64) | np.uint64(1)

    def __call__(self, text):
        words = self.words
        ids = np.array([words[w] if w in words else words.setdefault(w, word_hash(w)) for w in WORD.findall(text.lower())], dtype=np.uint64)
        count = len(ids) - self.n + 1
        if count <= 0:
            return np.empty(0, np.uint64)
        return sum(ids[i : i + count] * f for i, f in enumerate(self.factors))


def benchmark_grams(path, n=13):
    """Sorted hashes of every n-gram in the prompts and reference answers of a prompts.jsonl file."""
    grams, out = Grams(n), []
    for line in open(path, encoding="utf8"):
        row = json.loads(line)
        out += [grams(row["prompt"]), grams(row.get("reference") or "")]
    return grams, np.unique(np.concatenate(out))


def members(grams, known):
    """Which of `grams` stand in the sorted array `known`."""
    if not len(known):
        return np.zeros(len(grams), bool)
    at = np.searchsorted(known, grams)
    return known[np.minimum(at, len(known) - 1)] == grams


def decontaminate(documents, grams, forbidden):
    """Documents without any forbidden n-gram, and how many were dropped."""
    keep = [d for d in documents if not members(grams(d), forbidden).any()]
    return keep, len(documents) - len(keep)


def drop_near_duplicates(documents, n=5, sketch=6):
    """Keep the first of documents whose bottom-k sketches (the k smallest n-gram hashes) are equal."""
    grams, seen, keep = Grams(n), set(), []
    for d in documents:
        g = grams(d)
        key = np.partition(g, sketch - 1)[:sketch] if len(g) > sketch else None
        key = d if key is None else np.sort(key).tobytes()
        if key not in seen:
            seen.add(key)
            keep.append(d)
    return keep, len(documents) - len(keep)


def cap_templates(documents, cap, width=60):
    """At most `cap` documents of one skeleton: digits to 0, capitalised words to X, first `width` characters of the question."""
    count, keep = {}, []
    for d in documents:
        q = d.split("\n", 1)[1] if "\n" in d else d
        key = re.sub(r"\b[A-Z][a-z]+", "X", re.sub(r"\d+", "0", q))[:width]
        count[key] = count.get(key, 0) + 1
        if count[key] <= cap:
            keep.append(d)
    return keep, len(documents) - len(keep)


def digest(documents):
    h = hashlib.sha256()
    for d in documents:
        h.update(d.encode("utf8") + b"\0")
    return h.hexdigest()
