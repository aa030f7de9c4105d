"""Short dialogues: definitions from WordNet's data files, questions found in prose, and open requests (prompts only).

Open requests have no written answer; they widen the prompts that the target itself answers when drafters are trained.
"""
import re

from .text import ASSISTANT, chat

DEFINE = ["What is a {w}?", "What does the word {w} mean?", "Define {w}.", "What is {w}?", "Explain the term {w}.", "What does {w} mean?", "Can you tell me what {w} means?"]
OPEN = ["Tell me about {w}.", "Explain {w} to a child.", "Why is {w} important?", "Write a short paragraph about {w}.", "What should I know about {w}?",
        "Give me three facts about {w}.", "How does {w} work?", "What are the advantages of {w}?", "What is the difference between {w} and {v}?",
        "Suggest some ideas for {w}.", "Help me plan something with {w} and {v}.", "List a few examples of {w}.", "Compare {w} with {v}.",
        "How can I improve my {w}?", "What would happen without {w}?", "Describe {w} in one sentence.", "Do you like {w}?"]


def wordnet(folder):
    """(word, gloss) pairs of WordNet's data.* files; single words and short phrases only."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in open(f"{folder}/data.{part}", encoding="utf8"):
            if line.startswith("  ") or "|" not in line:
                continue
            head, gloss = line.split("|", 1)
            word = re.sub(r"\(\w+\)", "", head.split()[4]).replace("_", " ")
            gloss = gloss.split(';')[0].strip()
            if 3 <= len(word) <= 24 and 12 <= len(gloss) <= 200 and '"' not in gloss:
                yield word, gloss


def define_pair(word, gloss, rng):
    return chat(rng.choice(DEFINE).format(w=word), gloss[0].upper() + gloss[1:] + ".")


def request(user):
    return f"<|im_start|>user\n{user}<|im_end|>\n{ASSISTANT}"


def open_requests(words, count, rng):
    return [request(rng.choice(OPEN).format(w=rng.choice(words), v=rng.choice(words))) for _ in range(count)]


def prose_questions(documents, count, rng):
    """Questions of 20 to 160 characters found in running text, as user turns."""
    found = []
    for d in documents:
        for q in re.findall(r"(?<=[.!?\"“”] )([A-Z][^.!?\"“”\n]{20,160}\?)", re.sub(r"\s+", " ", d)):
            found.append(q)
    rng.shuffle(found)
    return [request(q) for q in found[:count]]
