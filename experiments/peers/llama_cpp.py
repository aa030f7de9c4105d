"""straw beside llama.cpp on this machine: the same random weights of a dense Llama shape, plain decoding and a 16-row pass.

usage: llama_cpp.py STRAW SHAPE WORK_FOLDER [ROUNDS]      e.g. llama_cpp.py target/release/straw llama-0.5b /tmp/peer 5
needs: pip install numpy gguf xllamacpp

`straw synth` writes the weights as Hugging Face safetensors in bf16, `straw quantize` makes L and M of them, and the `gguf`
package Q8_0 and Q4_0. llama.cpp is the one inside the `xllamacpp` wheel. Engines take turns, each in a process of its own;
figures are medians over the rounds. Printed as JSON: tokens per second of plain decoding, and milliseconds of a pass over
16 rows (straw: a verification of 16 rows; llama.cpp: a batch of 16 tokens, from the slope between prompts of two lengths
evaluated with a batch of 16).
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

ROWS = 16
DECODED = 64
SHORT, LONG = 64, 320


def tensors(folder):
    """Name -> float32 array of a single safetensors file in bf16."""
    with open(folder / "model.safetensors", "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            bits = np.frombuffer(file.read(end - begin), dtype=np.uint16).astype(np.uint32) << 16
            yield name, bits.view(np.float32).reshape(entry["shape"])


def interleave(weight, heads):
    """Hugging Face pairs channels i and i + half of a head for RoPE, llama.cpp's `llama` pairs neighbours."""
    rows, inputs = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, inputs).swapaxes(1, 2).reshape(rows, inputs)


NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name):
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        return {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[name] + ".weight"
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def write_gguf(folder, path, kind):
    import gguf

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    # A tokenizer that gives a token to every byte; the other ids have names that no text contains.
    vocab = config["vocab_size"]
    pieces = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{b:02X}>".encode() for b in range(256)]
    pieces += [f"\ue000{i}".encode() for i in range(len(pieces), vocab)]
    types = [2, 3, 3] + [6] * 256 + [1] * (vocab - 259)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * vocab)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    quant = getattr(gguf.GGMLQuantizationType, kind)
    for name, weight in tensors(folder):
        if name.endswith("q_proj.weight"):
            weight = interleave(weight, config["num_attention_heads"])
        if name.endswith("k_proj.weight"):
            weight = interleave(weight, config["num_key_value_heads"])
        if weight.ndim == 2:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(weight, quant), raw_dtype=quant)
        else:
            writer.add_tensor(gguf_name(name), weight.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp(path, threads):
    """Runs inside its own process: one model, timings printed as JSON."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = 1024
    params.n_batch = ROWS
    params.n_ubatch = ROWS
    params.n_parallel = 1
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)

    def ask(prompt, tokens):
        answer = server.handle_completions(
            {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        )
        return answer["timings"]

    ask("a" * SHORT, 4)
    decode = ask("b" * SHORT, DECODED)["predicted_per_second"]
    short, long = ask("c" * SHORT, 1), ask("d" * LONG, 1)
    per_token = (long["prompt_ms"] - short["prompt_ms"]) / (long["prompt_n"] - short["prompt_n"])
    print("RESULT " + json.dumps({"tokens_per_s": decode, "pass16_ms": per_token * ROWS}))


def straw_run(straw, model, threads):
    command = [straw, "explain", "--model", model, "--threads", str(threads), "--json"]
    cost = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["cost"]
    return {"tokens_per_s": 1 / cost["plain_s"], "pass16_ms": 1e3 * cost["verify_s"][ROWS - 1]}


def main(straw, shape, work, rounds="5"):
    work = pathlib.Path(work)
    work.mkdir(parents=True, exist_ok=True)
    source = work / shape
    if not (source / "config.json").exists():
        subprocess.run([straw, "synth", "--shape", shape, "--shard", "100000", "--out", source], check=True)
    arms = {}
    for scheme in ["l", "m"]:
        out = work / f"{shape}-{scheme}"
        if not (out / "config.json").exists():
            subprocess.run([straw, "quantize", "--model", source, "--scheme", scheme, "--out", out], check=True)
        arms[f"straw {scheme.upper()}"] = ("straw", out)
    for kind in ["Q8_0", "Q4_0"]:
        path = work / f"{shape}-{kind}.gguf"
        if not path.exists():
            write_gguf(source, path, kind)
        arms[f"llama.cpp {kind}"] = ("llama.cpp", path)
    threads = len(os.sched_getaffinity(0))
    found = {name: [] for name in arms}
    for _ in range(int(rounds)):
        for name, (engine, path) in arms.items():
            if engine == "straw":
                found[name].append(straw_run(straw, path, threads))
            else:
                command = [sys.executable, __file__, "--llama-cpp", str(path), str(threads)]
                lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
                found[name].append(json.loads(next(x for x in lines if x.startswith("RESULT "))[7:]))
            time.sleep(0.2)
    keys = ["tokens_per_s", "pass16_ms"]
    medians = {name: {key: statistics.median(run[key] for run in runs) for key in keys} for name, runs in found.items()}
    print(json.dumps({"shape": shape, "threads": threads, "rounds": int(rounds), "medians": medians, "runs": found}, indent=2))


if __name__ == "__main__":
    if sys.argv[1] == "--llama-cpp":
        llama_cpp(sys.argv[2], int(sys.argv[3]))
    else:
        main(*sys.argv[1:])
