"""The target: a Qwen3.5 hybrid (Gated DeltaNet and gated attention) or a dense Qwen3 model, in plain PyTorch.

Parameter names equal Hugging Face's state dict, so files load and save without renaming. The module works on whole rows
`ids [B, T]`; one-token decoding with a state lives in decode.py. Norms compute in float32.
"""
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

from . import gdn


@dataclass
class TargetConfig:
    vocab_size: int = 8192
    hidden_size: int = 512
    intermediate_size: int = 1536
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 128
    layer_types: list = field(default_factory=lambda: (["linear_attention"] * 3 + ["full_attention"]) * 2)
    rope_theta: float = 1e6
    rotary_dim: int = 32
    rms_norm_eps: float = 1e-6
    norm_offset: float = 1.0  # Qwen3.5 scales by 1 + weight, Qwen3 by weight
    output_gate: bool = True
    tied: bool = True
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4


def activations(device):
    """bfloat16 under autocast on a GPU, float32 on a CPU."""
    return torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32


def amp(device):
    return torch.autocast("cuda", torch.bfloat16, enabled=torch.device(device).type == "cuda", cache_enabled=torch.is_grad_enabled())


class RMSNorm(nn.Module):
    def __init__(self, size, eps=1e-6, offset=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.0 - offset))
        self.eps, self.offset = eps, offset

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (self.offset + self.weight.float())).to(x.dtype)


class GatedRMSNorm(RMSNorm):
    def forward(self, x, z):
        return (super().forward(x).float() * F.silu(z.float())).to(x.dtype)


def rope(x, pos, dim, theta):
    """x: [B, H, T, D]; pos: [B, T] or [T]. Rotates the first `dim` channels, halves paired."""
    freq = theta ** (-torch.arange(0, dim, 2, device=x.device, dtype=torch.float32) / dim)
    a = pos.float()[..., None] * freq
    a = torch.cat([a, a], -1)
    a = a[None] if a.dim() == 2 else a
    cos, sin = a.cos()[:, None].to(x.dtype), a.sin()[:, None].to(x.dtype)
    r, rest = x[..., :dim], x[..., dim:]
    turned = torch.cat([-r[..., dim // 2 :], r[..., : dim // 2]], -1)
    return torch.cat([r * cos + turned * sin, rest], -1)


def linear(i, o, bias=False):
    return nn.Linear(i, o, bias=bias)


class MLP(nn.Module):
    def __init__(self, size, inner):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(size, inner), linear(size, inner), linear(inner, size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, d, hd = c, c.hidden_size, c.head_dim
        self.q_proj = linear(d, c.num_attention_heads * hd * (2 if c.output_gate else 1))
        self.k_proj, self.v_proj = linear(d, c.num_key_value_heads * hd), linear(d, c.num_key_value_heads * hd)
        self.o_proj = linear(c.num_attention_heads * hd, d)
        self.q_norm, self.k_norm = RMSNorm(hd, c.rms_norm_eps, c.norm_offset), RMSNorm(hd, c.rms_norm_eps, c.norm_offset)

    def project(self, x, pos):
        """q [B, Nq, T, hd], k, v [B, Nkv, T, hd] after norm and rotation; gate [B, T, Nq*hd] or None."""
        c, (B, T, _) = self.c, x.shape
        q, gate = self.q_proj(x), None
        if c.output_gate:
            q, gate = q.view(B, T, c.num_attention_heads, 2 * c.head_dim).chunk(2, -1)
            gate = gate.reshape(B, T, -1)
        q = self.q_norm(q.reshape(B, T, c.num_attention_heads, c.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(B, T, c.num_key_value_heads, c.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(B, T, c.num_key_value_heads, c.head_dim).transpose(1, 2)
        return rope(q, pos, c.rotary_dim, c.rope_theta), rope(k, pos, c.rotary_dim, c.rope_theta), v, gate

    def out(self, o, gate):
        return self.o_proj(o if gate is None else o * torch.sigmoid(gate))

    def forward(self, x, pos):
        q, k, v, gate = self.project(x, pos)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(o.transpose(1, 2).reshape(*x.shape[:2], -1), gate)


class GatedDeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c.hidden_size
        self.nk, self.nv, self.dk, self.dv = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
        self.K, self.kd, self.vd = c.linear_conv_kernel_dim, self.nk * self.dk, self.nv * self.dv
        channels = 2 * self.kd + self.vd
        self.conv1d = nn.Conv1d(channels, channels, self.K, groups=channels, bias=False, padding=self.K - 1)
        self.dt_bias = nn.Parameter(torch.ones(self.nv))
        self.A_log = nn.Parameter(torch.log(torch.empty(self.nv).uniform_(0.01, 16)))
        self.norm, self.out_proj = GatedRMSNorm(self.dv, c.rms_norm_eps), linear(self.vd, d)
        self.in_proj_qkv, self.in_proj_z = linear(d, channels), linear(d, self.vd)
        self.in_proj_b, self.in_proj_a = linear(d, self.nv), linear(d, self.nv)

    def before(self, x, history=None):
        """Everything up to the recurrence. history: the K-1 raw rows before x (zeros at the start of a sequence)."""
        B, T, _ = x.shape
        u = self.in_proj_qkv(x)
        if history is None:
            history = u.new_zeros(B, self.K - 1, u.shape[-1])
        raw = torch.cat([history, u], 1)
        w = self.conv1d.weight[:, 0]
        mixed = F.silu(sum(raw[:, i : i + T] * w[:, i].to(u.dtype) for i in range(self.K)))
        q, k, v = mixed.split([self.kd, self.kd, self.vd], -1)
        r = self.nv // self.nk
        q = q.reshape(B, T, self.nk, self.dk).repeat_interleave(r, 2)
        k = k.reshape(B, T, self.nk, self.dk).repeat_interleave(r, 2)
        beta = self.in_proj_b(x).sigmoid()
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        return q, k, v.reshape(B, T, self.nv, self.dv).contiguous(), g, beta, self.in_proj_z(x).view(B, T, self.nv, self.dv), raw

    def after(self, o, z):
        B, T = o.shape[:2]
        return self.out_proj(self.norm(o.reshape(-1, self.dv), z.reshape(-1, self.dv)).view(B, T, -1))


class Layer(nn.Module):
    """before -> recurrence -> after for a linear layer; `attend` for a full one. Split so that the parts can be compiled."""

    def __init__(self, c, full):
        super().__init__()
        self.full = full
        if full:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = GatedDeltaNet(c)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps, c.norm_offset)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps, c.norm_offset)

    def feed(self, x):
        return x + self.mlp(self.post_attention_layernorm(x))

    def attend(self, x, pos):
        return self.feed(x + self.self_attn(self.input_layernorm(x), pos))

    def before(self, x, history=None):
        return self.linear_attn.before(self.input_layernorm(x), history)

    def after(self, x, o, z):
        return self.feed(x + self.linear_attn.after(o, z))

    def forward(self, x, pos):
        if self.full:
            return self.attend(x, pos)
        q, k, v, g, beta, z, _ = self.before(x)
        return self.after(x, gdn.scan(q, k, v, g, beta), z)


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c, t == "full_attention") for t in c.layer_types)
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, c.norm_offset)


class Target(nn.Module):
    def __init__(self, c=None):
        super().__init__()
        self.c = c = c or TargetConfig()
        self.model = Body(c)
        if not c.tied:
            self.lm_head = linear(c.hidden_size, c.vocab_size)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
            if "conv1d" in name:
                nn.init.uniform_(p, -0.5, 0.5)
        for l in self.model.layers:
            for m in (l.self_attn.o_proj if l.full else l.linear_attn.out_proj, l.mlp.down_proj):
                m.weight.data /= (2 * len(c.layer_types)) ** 0.5

    def head_weight(self):
        return self.model.embed_tokens.weight if self.c.tied else self.lm_head.weight

    def head(self, h):
        return F.linear(h, self.head_weight().to(h.dtype))

    def embed(self, ids):
        return self.model.embed_tokens(ids).to(activations(ids.device))

    def forward(self, ids, taps=()):
        """ids [B, T] -> final hidden [B, T, H]; with taps also the residual stream after those layers, [B, T, len(taps)*H]."""
        pos = torch.arange(ids.shape[1], device=ids.device)
        x, seen = self.embed(ids), {}
        for i, layer in enumerate(self.model.layers):
            x = layer(x, pos)
            if i in taps:
                seen[i] = x
        h = self.model.norm(x)
        return (h, torch.cat([seen[i] for i in taps], -1)) if taps else h
