"""export: trained parts to the layout that engines read: Hugging Face target with `mtp.*`, z-lab `dflash/`, `weaver/`.

Weights are bf16, `A_log` and `dt_bias` float32. The parts of a run are joined: target directory, `mtp.safetensors`,
`dflash/`, `weaver/`.
"""
import argparse
import json
import os
import shutil

from safetensors.torch import load_file, save_file

from .load import stored, target_config, tensors

SPECIAL = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 6}
CHAT = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def dump(value, path):
    json.dump(value, open(path, "w"), indent=2)


def save(state, path):
    save_file(stored(state), path, metadata={"format": "pt"})


def target_json(c):
    return {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "attention_bias": False, "attention_dropout": 0.0,
        "attn_output_gate": True, **SPECIAL, "dtype": "bfloat16", "full_attention_interval": 4, "head_dim": c.head_dim, "hidden_act": "silu",
        "hidden_size": c.hidden_size, "initializer_range": 0.02, "intermediate_size": c.intermediate_size, "layer_types": c.layer_types,
        "linear_conv_kernel_dim": c.linear_conv_kernel_dim, "linear_key_head_dim": c.linear_key_head_dim, "linear_value_head_dim": c.linear_value_head_dim,
        "linear_num_key_heads": c.linear_num_key_heads, "linear_num_value_heads": c.linear_num_value_heads, "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 4096, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": c.num_attention_heads, "num_hidden_layers": len(c.layer_types), "num_key_value_heads": c.num_key_value_heads,
        "partial_rotary_factor": c.rotary_dim / c.head_dim, "rms_norm_eps": c.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": c.rotary_dim / c.head_dim},
        "tie_word_embeddings": c.tied, "use_cache": True, "vocab_size": c.vocab_size}


def dflash_json(c, target):
    return {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "attention_bias": False, "attention_dropout": 0.0, "block_size": c.block_size,
        "dflash_config": {"target_layer_ids": list(c.taps), "mask_token_id": c.mask_token_id}, "dtype": "bfloat16", "head_dim": c.head_dim,
        "hidden_act": "silu", "hidden_size": c.hidden_size, "intermediate_size": c.intermediate_size,
        "layer_types": ["full_attention"] * c.num_hidden_layers, "max_position_embeddings": 4096, "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": c.num_hidden_layers, "num_key_value_heads": c.num_key_value_heads, "num_target_layers": len(target.layer_types),
        "rms_norm_eps": c.rms_norm_eps, "rope_theta": c.rope_theta, "tie_word_embeddings": target.tied, "vocab_size": target.vocab_size,
        "bos_token_id": SPECIAL["bos_token_id"], "eos_token_id": SPECIAL["eos_token_id"]}


def weaver_json(c, vocab_size, block_size):
    return {
        "model_type": "weaver", "target_hidden_size": c.target_hidden_size, "vocab_size": vocab_size, "block_size": block_size,
        "rms_norm_eps": c.rms_norm_eps, "dtype": "bfloat16", "model_dim": c.model_dim, "num_layers": c.num_layers, "num_heads": c.num_heads,
        "hidden_dim": c.hidden_dim, "max_depth": c.max_depth, "candidate_pool_size": c.candidate_pool_size, "rope_theta": c.rope_theta}


def write_target(out, target, tokenizer):
    os.makedirs(out, exist_ok=True)
    dump(target_json(target.c), f"{out}/config.json")
    dump({"do_sample": False, "bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 6}, f"{out}/generation_config.json")
    dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|pad|>", "mask_token": "<|mask|>",
          "add_prefix_space": False, "clean_up_tokenization_spaces": False, "model_max_length": 4096, "chat_template": CHAT}, f"{out}/tokenizer_config.json")
    shutil.copyfile(tokenizer, f"{out}/tokenizer.json")
    save(target.state_dict(), f"{out}/model.safetensors")


def write_dflash(out, module, target):
    os.makedirs(out, exist_ok=True)
    dump(dflash_json(module.c, target), f"{out}/config.json")
    save(module.state_dict(), f"{out}/model.safetensors")


def write_weaver(out, module, vocab_size):
    os.makedirs(out, exist_ok=True)
    dump(weaver_json(module.c, vocab_size, module.c.max_depth + 1), f"{out}/config.json")
    save(module.state_dict(), f"{out}/model.safetensors")


def size_8bit(folder, group=64):
    """Bytes when every matrix is int8 with a bf16 scale per group and the rest stays as it is."""
    total = 0
    for sub in ("", "dflash", "weaver"):
        if os.path.exists(f"{folder}/{sub}/config.json"):
            total += sum(v.numel() + v.numel() // group * 2 if v.dim() == 2 else v.numel() * v.element_size() for v in tensors(f"{folder}/{sub}").values())
    return total


def main(argv):
    p = argparse.ArgumentParser(prog="export", description=__doc__)
    p.add_argument("target", help="target directory")
    p.add_argument("out", help="directory to write")
    p.add_argument("--mtp", help="mtp.safetensors of train_mtp (names without prefix)")
    p.add_argument("--dflash", help="directory of train_dflash")
    p.add_argument("--weaver", help="directory of train_weaver")
    a = p.parse_args(argv)
    os.makedirs(a.out, exist_ok=True)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if os.path.exists(f"{a.target}/{name}"):
            shutil.copyfile(f"{a.target}/{name}", f"{a.out}/{name}")
    state = {k: v for k, v in tensors(a.target).items() if not (a.mtp and k.startswith("mtp."))}
    if a.mtp:
        state.update({f"mtp.{k}": v for k, v in load_file(a.mtp).items()})
    save_file({k: v.contiguous() for k, v in state.items()}, f"{a.out}/model.safetensors", metadata={"format": "pt"})
    target_config(a.out)
    for sub, path in (("dflash", a.dflash), ("weaver", a.weaver)):
        if path:
            shutil.copytree(path, f"{a.out}/{sub}", dirs_exist_ok=True)
    print(f"{a.out}: {size_8bit(a.out) / 1e6:.1f} MB at 8 bits with a bf16 scale per 64 weights")
