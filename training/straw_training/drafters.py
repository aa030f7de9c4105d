"""The drafters: MTP head, DFlash block drafter, Weaver rescorer. They share the target's embedding and head.

MTP uses the target's own layer. DFlash follows z-lab's layout: block [root, mask, ...] attends to itself and to the
context, whose keys and values come from the fused target taps. The Weaver rescores a shortlist given the tokens already
chosen on a path: rows [h_root; block hidden 1..P] as a causal prefix, then one row per path token.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

from .model import MLP, Layer, RMSNorm, linear, rope


@dataclass
class DFlashConfig:
    hidden_size: int = 512
    taps: tuple = (1, 4, 6)
    block_size: int = 16
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 128
    intermediate_size: int = 1536
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-6
    mask_token_id: int = 3


@dataclass
class WeaverConfig:
    target_hidden_size: int = 512
    model_dim: int = 192
    num_layers: int = 2
    num_heads: int = 4
    hidden_dim: int = 512
    max_depth: int = 15
    candidate_pool_size: int = 16
    rope_theta: float = 1e4
    rms_norm_eps: float = 1e-6


class MTP(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c.hidden_size
        norm = lambda: RMSNorm(d, c.rms_norm_eps, c.norm_offset)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = norm(), norm(), norm()
        self.fc, self.layers = linear(2 * d, d), nn.ModuleList([Layer(c, True)])
        initialise(self)

    def mix(self, embedding, hidden):
        return self.fc(torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1))

    def run(self, x, pos):
        return self.norm(self.layers[0](x, pos))

    def forward(self, embedding, hidden, pos):
        """embedding of token p+1 and hidden of row p -> hidden that predicts token p+2; all [B, T, H]."""
        return self.run(self.mix(embedding, hidden), pos)


class DraftAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, d = c, c.hidden_size
        self.q_proj, self.o_proj = linear(d, c.num_attention_heads * c.head_dim), linear(c.num_attention_heads * c.head_dim, d)
        self.k_proj, self.v_proj = linear(d, c.num_key_value_heads * c.head_dim), linear(d, c.num_key_value_heads * c.head_dim)
        self.q_norm, self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps), RMSNorm(c.head_dim, c.rms_norm_eps)

    def forward(self, x, context, qpos, kpos, mask):
        c, (B, T, _) = self.c, x.shape
        kv = torch.cat([context, x], 1)
        q = rope(self.q_norm(self.q_proj(x).view(B, T, -1, c.head_dim)).transpose(1, 2), qpos, c.head_dim, c.rope_theta)
        k = rope(self.k_norm(self.k_proj(kv).view(B, kv.shape[1], -1, c.head_dim)).transpose(1, 2), kpos, c.head_dim, c.rope_theta)
        v = self.v_proj(kv).view(B, kv.shape[1], -1, c.head_dim).transpose(1, 2)
        r = c.num_attention_heads // c.num_key_value_heads
        o = F.scaled_dot_product_attention(q, k.repeat_interleave(r, 1), v.repeat_interleave(r, 1), attn_mask=mask)
        return self.o_proj(o.transpose(1, 2).reshape(B, T, -1))


class DraftLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = DraftAttention(c), MLP(c.hidden_size, c.intermediate_size)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x, context, qpos, kpos, mask):
        x = x + self.self_attn(self.input_layernorm(x), context, qpos, kpos, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class DFlash(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.layers = nn.ModuleList(DraftLayer(c) for _ in range(c.num_hidden_layers))
        self.fc = linear(len(c.taps) * c.hidden_size, c.hidden_size)
        self.hidden_norm, self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps), RMSNorm(c.hidden_size, c.rms_norm_eps)
        initialise(self)

    def forward(self, block, taps, qpos, kpos, mask):
        """block [B, Q, H] embeddings, taps [B, L, n*H] -> hidden [B, Q, H]; mask [B, 1, Q, L+Q] is True where a query may look."""
        context = self.hidden_norm(self.fc(taps))
        for layer in self.layers:
            block = layer(block, context, qpos, kpos, mask)
        return self.norm(block)


class WeaverBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.c = c.model_dim, c
        self.pre_attention_norm, self.pre_mlp_norm = RMSNorm(d, c.rms_norm_eps), RMSNorm(d, c.rms_norm_eps)
        self.qkv_projection, self.out_projection = linear(d, 3 * d), linear(d, d)
        self.gate_proj, self.up_proj, self.down_proj = linear(d, c.hidden_dim, True), linear(d, c.hidden_dim, True), linear(c.hidden_dim, d, True)

    def forward(self, x, pos, mask):
        B, T, d = x.shape
        h = self.c.num_heads
        q, k, v = (t.view(B, T, h, -1).transpose(1, 2) for t in self.qkv_projection(self.pre_attention_norm(x)).chunk(3, -1))
        q, k = rope(q, pos, d // h, self.c.rope_theta), rope(k, pos, d // h, self.c.rope_theta)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out_projection(o.transpose(1, 2).reshape(B, T, d))
        y = self.pre_mlp_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Weaver(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, t, self.c = c.model_dim, c.target_hidden_size, c
        norm = lambda n: RMSNorm(n, c.rms_norm_eps)
        self.embedding_norm, self.hidden_state_norm, self.output_norm = norm(t), norm(t), norm(d)
        self.embedding_projection, self.hidden_state_projection = linear(t, d, True), linear(t, d, True)
        self.query_projection = linear(d, t)
        self.blocks = nn.ModuleList(WeaverBlock(c) for _ in range(c.num_layers))
        nn.init.zeros_(self.query_projection.weight)

    def forward(self, root_hidden, block_hidden, path):
        """root_hidden [B, 1, t], block_hidden [B, P, t], path [B, P, t] (embeddings of the tokens at depth 0..P-1) -> queries [B, P, t]."""
        P, device = block_hidden.shape[1], block_hidden.device
        prefix = self.hidden_state_projection(self.hidden_state_norm(torch.cat([root_hidden, block_hidden], 1)))
        x = torch.cat([prefix, self.embedding_projection(self.embedding_norm(path))], 1)
        pos = torch.cat([torch.arange(P + 1, device=device), torch.arange(P, device=device) + 1])
        i = torch.arange(2 * P + 1, device=device)
        is_prefix, before = i <= P, i[None] <= i[:, None]
        mask = (is_prefix[:, None] & is_prefix[None] & before) | (~is_prefix[:, None] & (is_prefix[None] | before))
        for b in self.blocks:
            x = b(x, pos, mask)
        return self.query_projection(self.output_norm(x[:, P + 1 :]))


def initialise(module, std=0.02):
    for p in module.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=std)


def block_inputs(target, c, ids, anchors, end):
    """What DFlash sees at each anchor (a known token; taps exist before it) and what it should say.

    ids [B, L], anchors [B, A], end [B] -> block embeddings [B, A*bs, H], query positions, key positions, mask
    [B, 1, A*bs, L+A*bs], labels [B, A, bs] (-100 past the end; label 0 is the anchor itself).
    """
    (B, L), A, bs, device = ids.shape, anchors.shape[1], c.block_size, ids.device
    pos = anchors[..., None] + torch.arange(bs, device=device)
    block = torch.full((B, A, bs), c.mask_token_id, device=device)
    block[..., 0] = ids.gather(1, anchors)
    labels = torch.where(pos < end[:, None, None], ids.gather(1, pos.clamp(max=L - 1).flatten(1)).view(B, A, bs), -100)
    own = torch.arange(A, device=device).repeat_interleave(bs)
    context = torch.arange(L, device=device)[None, None] < anchors.repeat_interleave(bs, 1)[..., None]
    mask = torch.cat([context, (own[:, None] == own[None])[None].expand(B, -1, -1)], -1)[:, None]
    qpos = pos.flatten(1)
    kpos = torch.cat([torch.arange(L, device=device)[None].expand(B, -1), qpos], 1)
    return target.embed(block.flatten(1)), qpos, kpos, mask, labels
