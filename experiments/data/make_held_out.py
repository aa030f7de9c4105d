"""Writes held-out.jsonl: some prompts of each workload with the answers of the unquantised model.

usage: make_held_out.py STRAW MODEL PROMPTS.jsonl TRAINING_TEXT_FOLDER OUT.jsonl [PER_WORKLOAD]

Prompts that share 13 words in a row with the training text are left out (xz files of documents). Answers are the model's
own, greedy, at most 96 tokens, so they have no licence but the prompt's.
"""

import json
import lzma
import pathlib
import re
import subprocess
import sys

WORDS = 13
MAX_TOKENS = 96
LONGEST_PROMPT = 900


def grams(text):
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)}


def main(straw, model, prompts, training, out, per_workload="6"):
    rows = [json.loads(line) for line in open(prompts, encoding="utf-8")]
    by_workload = {}
    for row in rows:
        if len(row["prompt"]) <= LONGEST_PROMPT:
            by_workload.setdefault(row["workload"], []).append(row)
    chosen = []
    for some in by_workload.values():
        step = max(1, len(some) // int(per_workload))
        chosen += some[step // 2 :: step][: int(per_workload)]
    wanted = {row["id"]: grams(row["prompt"]) for row in chosen}
    everything = set().union(*wanted.values())
    seen = set()
    for file in sorted(pathlib.Path(training).glob("*.xz")):
        for document in lzma.open(file).read().decode("utf-8").split("\0"):
            seen |= everything & grams(document)
    kept = [row for row in chosen if not wanted[row["id"]] & seen]
    print(f"{len(chosen)} prompts, {len(chosen) - len(kept)} share {WORDS} words in a row with the training text", file=sys.stderr)
    with open(out, "w", encoding="utf-8") as to:
        for row in kept:
            command = [straw, "generate", "--model", model, "--json", "--drafter", "off", "--max-tokens", str(MAX_TOKENS), "-m", row["prompt"]]
            answer = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["text"]
            if answer.strip():
                keep = {name: row[name] for name in ("id", "workload", "source", "license", "prompt")}
                to.write(json.dumps(keep | {"answer": answer}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
