"""Model directories: Hugging Face layout to modules and back (nested or flat config, one or many safetensors files)."""
import dataclasses
import glob
import json
import os
import time

import torch
from safetensors.torch import load_file, save_file

from .drafters import MTP, DFlash, DFlashConfig, Weaver, WeaverConfig
from .model import Target, TargetConfig

BEGAN = time.time()


def log(*a):
    print(f"[{time.time() - BEGAN:6.1f}s]", *a, flush=True)


def device_of():
    return "cuda" if torch.cuda.is_available() else "cpu"


def target_config(folder):
    top = json.load(open(f"{folder}/config.json"))
    c = top.get("text_config", top)
    kind = c.get("model_type", "")
    if not kind.startswith(("qwen3_5", "qwen3")) or "moe" in kind:
        raise ValueError(f"{folder}/config.json: model_type {kind!r} is not supported, expected qwen3_5, qwen3_5_text or qwen3")
    hybrid, n = kind.startswith("qwen3_5"), c["num_hidden_layers"]
    rope = c.get("rope_parameters") or {}
    types = c.get("layer_types")
    if not types:
        every = c.get("full_attention_interval", 4) if hybrid else 1
        types = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(n)]
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    part = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 0.25 if hybrid else 1.0))
    names = {f.name for f in dataclasses.fields(TargetConfig)} - {"layer_types", "head_dim", "rope_theta"}
    return TargetConfig(
        **{k: v for k, v in c.items() if k in names}, layer_types=types, head_dim=head,
        rope_theta=rope.get("rope_theta", c.get("rope_theta", 1e6)), rotary_dim=int(head * part), norm_offset=1.0 if hybrid else 0.0,
        output_gate=hybrid, tied=top.get("tie_word_embeddings", c.get("tie_word_embeddings", False)))


def tensors(folder):
    out = {}
    for path in sorted(glob.glob(f"{folder}/*.safetensors")):
        out.update(load_file(path))
    if not out:
        raise FileNotFoundError(f"{folder}: no .safetensors file")
    return {k: dequantised(v, out[f"{k}.scale"]) if v.dtype == torch.int8 else v for k, v in out.items() if not k.endswith(".weight.scale")}


def dequantised(codes, scale):
    """straw's 8-bit scheme (docs/formats.md): weight = scale * code, one scale per 64 inputs."""
    return codes.float() * scale.float().repeat_interleave(64, 1)[:, : codes.shape[1]]


def fill(module, state, what):
    """Load float32 copies of the tensors that the module has; a missing one is an error that names it."""
    own = module.state_dict()
    missing = [k for k in own if k not in state]
    if missing:
        raise KeyError(f"{what}: {len(missing)} tensors missing, first {missing[0]}")
    module.load_state_dict({k: state[k].float().view_as(own[k]) for k in own})
    return module


def token_ids(folder):
    """Ids that end an answer, and the mask id (never to be generated)."""
    read = lambda name: json.load(open(f"{folder}/{name}")) if os.path.exists(f"{folder}/{name}") else {}
    top = read("config.json")
    ends = read("generation_config.json").get("eos_token_id", top.get("eos_token_id", top.get("text_config", {}).get("eos_token_id")))
    ends = [e for e in (ends if isinstance(ends, list) else [ends]) if e is not None]
    mask = read("dflash/config.json").get("dflash_config", {}).get("mask_token_id")
    if mask is None and os.path.exists(f"{folder}/tokenizer.json"):
        mask = next((t["id"] for t in read("tokenizer.json").get("added_tokens", []) if "mask" in t["content"]), None)
    vocab = top.get("text_config", top)["vocab_size"]
    return {"ends": ends or [vocab - 1], "banned": vocab - 1 if mask is None else mask}


def marker_of(folder):
    """Token ids of the text that opens an answer."""
    from tokenizers import Tokenizer
    return Tokenizer.from_file(f"{folder}/tokenizer.json").encode("<|im_start|>assistant\n", add_special_tokens=False).ids


def load_target(folder, device="cpu"):
    state = {k.replace("model.language_model.", "model."): v for k, v in tensors(folder).items()}
    target = fill(Target(target_config(folder)), state, folder).to(device).requires_grad_(False).eval()
    return target, token_ids(folder)


def load_mtp(folder, target, device="cpu"):
    state = {k[4:]: v for k, v in tensors(folder).items() if k.startswith("mtp.")}
    return fill(MTP(target.c), state, f"{folder} mtp.*").to(device).eval()


def load_dflash(folder, device="cpu"):
    c = json.load(open(f"{folder}/config.json"))
    own = c["dflash_config"]
    names = {f.name for f in dataclasses.fields(DFlashConfig)} - {"taps", "mask_token_id", "block_size"}
    c = DFlashConfig(**{k: v for k, v in c.items() if k in names}, taps=tuple(own["target_layer_ids"]),
                     mask_token_id=own["mask_token_id"], block_size=c.get("block_size", own.get("block_size", 16)))
    return fill(DFlash(c), tensors(folder), folder).to(device).eval()


def load_weaver(folder, device="cpu"):
    c = json.load(open(f"{folder}/config.json"))
    names = {f.name for f in dataclasses.fields(WeaverConfig)}
    return fill(Weaver(WeaverConfig(**{k: v for k, v in c.items() if k in names})), tensors(folder), folder).to(device).eval()


def stored(state):
    """bf16 on the CPU; A_log and dt_bias stay float32."""
    keep = lambda k: "A_log" in k or "dt_bias" in k
    return {k: v.detach().to("cpu", torch.float32 if keep(k) else torch.bfloat16).contiguous() for k, v in state.items()}


def save_parts(state, path, limit=15 * 2**20):
    """`path-00.safetensors`, `path-01...`: files of at most `limit` bytes, for transports that bound a file's size."""
    part, size, n = {}, 0, 0
    for k, v in {**stored(state), None: None}.items():
        bytes_ = 0 if v is None else v.numel() * v.element_size()
        if part and (v is None or size + bytes_ > limit):
            save_file(part, f"{path}-{n:02d}.safetensors", metadata={"format": "pt"})
            part, size, n = {}, 0, n + 1
        if v is not None:
            part[k], size = v, size + bytes_


def load_parts(path):
    out = {}
    for p in sorted(glob.glob(f"{path}-[0-9][0-9].safetensors")):
        out.update(load_file(p))
    return out
