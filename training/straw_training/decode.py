"""Wide batched decoding: one token for every row per step, finished rows replaced by new prompts.

Rows are independent: each has its own position, temperature and end. Prompts are fed token by token through the same
step, so one captured CUDA graph serves everything. On a CPU the same code runs without graph and Triton.
"""
import torch
import torch.nn.functional as F

from . import gdn
from .model import Layer, activations, amp
from .optim import compiled

try:
    import triton
    import triton.language as tl

    @triton.jit
    def _step_kernel(q, k, v, g, beta, S, o, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr):
        i = tl.program_id(0).to(tl.int64)
        rk, rv = tl.arange(0, DK), tl.program_id(1) * BV + tl.arange(0, BV)
        qi, ki = tl.load(q + i * DK + rk).to(tl.float32), tl.load(k + i * DK + rk).to(tl.float32)
        qi = qi * tl.rsqrt(tl.sum(qi * qi, 0) + 1e-6) * (DK**-0.5)
        ki = ki * tl.rsqrt(tl.sum(ki * ki, 0) + 1e-6)
        at = S + i * DK * DV + rk[:, None] * DV + rv[None, :]
        s = tl.load(at) * tl.exp(tl.load(g + i).to(tl.float32))
        d = (tl.load(v + i * DV + rv).to(tl.float32) - tl.sum(s * ki[:, None], 0)) * tl.load(beta + i).to(tl.float32)
        s += ki[:, None] * d[None, :]
        tl.store(at, s)
        tl.store(o + i * DV + rv, tl.sum(s * qi[:, None], 0).to(o.dtype.element_ty))
except ImportError:
    triton = None


def step_in_place(q, k, v, g, beta, S):
    """q, k, v [B, H, D], g, beta [B, H]; S [B, H, Dk, Dv] float32 is updated in place. Returns [B, H, Dv]."""
    if triton is None or not S.is_cuda:
        o, new = gdn.step(q, k, v, g, beta, S)
        S.copy_(new)
        return o
    B, H, DK = q.shape
    o = torch.empty_like(v)
    block = min(32, v.shape[-1])
    _step_kernel[(B * H, v.shape[-1] // block)](q.contiguous(), k.contiguous(), v.contiguous(), g.contiguous(), beta.contiguous(), S, o, DK, v.shape[-1], block, num_warps=4)
    return o


def check_step(device):
    """Largest difference of the in-place kernel from the plain step."""
    r = lambda *s: torch.randn(*s, device=device)
    q, k, v, g, beta, S = r(3, 4, 128), r(3, 4, 128), r(3, 4, 128), -r(3, 4).abs(), torch.sigmoid(r(3, 4)), r(3, 4, 128, 128)
    o, new = gdn.step(q, k, v, g, beta, S)
    return max((step_in_place(q, k, v, g, beta, S) - o).abs().max().item(), (S - new).abs().max().item())


def project(layer, x, pos):
    return layer.self_attn.project(layer.input_layernorm(x), pos)


def finish(layer, x, o, gate):
    return layer.feed(x + layer.self_attn.out(o, gate))


def choose(target, x, noise, temperature, banned):
    logits = target.head(target.model.norm(x))[:, 0].float()
    logits[:, banned] = -1e9
    return (logits + temperature[:, None] * -torch.log(-torch.log(noise.clamp(1e-9, 1 - 1e-7)))).argmax(-1)


class Decoder:
    def __init__(self, target, rows, capacity, ends, banned, device, fast=True):
        self.fast = fast  # compiled parts and a captured graph: worth it for many steps
        self.target, self.rows, self.capacity, self.banned, self.device = target, rows, capacity, banned, device
        c, self.dtype = target.c, activations(device)
        zeros = lambda *s, dtype=torch.long: torch.zeros(*s, device=device, dtype=dtype)
        self.state = []
        for l in target.model.layers:
            if l.full:
                self.state.append([zeros(rows, c.num_key_value_heads, capacity, c.head_dim, dtype=self.dtype) for _ in "kv"])
            else:
                a = l.linear_attn
                self.state.append([zeros(rows, a.K - 1, 2 * a.kd + a.vd, dtype=self.dtype), zeros(rows, a.nv, a.dk, a.dv, dtype=torch.float32)])
        self.pos, self.token, self.prompt, self.limit, self.end = zeros(rows), zeros(rows), zeros(rows) + 1, zeros(rows) + 1, zeros(rows)
        self.out, self.done, self.temperature = zeros(rows, capacity), zeros(rows, dtype=torch.bool), zeros(rows, dtype=torch.float32)
        self.ends, self.index, self.columns = torch.tensor(ends, device=device), torch.arange(rows, device=device), torch.arange(capacity, device=device)
        self.project, self.finish, self.choose = (compiled(f) if fast else f for f in (project, finish, choose))
        self.graph = None

    def one(self):
        """Feed `token` at `pos` and put the next token (given or chosen) at pos + 1."""
        t, B, c = self.target, self.rows, self.target.c
        x = t.embed(self.token[:, None])
        for layer, state in zip(t.model.layers, self.state):
            if layer.full:
                q, k, v, gate = self.project(layer, x, self.pos[:, None])
                state[0][self.index, :, self.pos], state[1][self.index, :, self.pos] = k[:, :, 0].to(self.dtype), v[:, :, 0].to(self.dtype)
                grouped = q.reshape(B, c.num_key_value_heads, -1, c.head_dim)
                o = F.scaled_dot_product_attention(grouped.to(self.dtype), *state, attn_mask=(self.columns <= self.pos[:, None])[:, None, None])
                x = self.finish(layer, x, o.reshape(B, 1, -1), gate)
            else:
                q, k, v, g, beta, z, raw = layer.before(x, state[0])
                state[0].copy_(raw[:, 1:])
                o = step_in_place(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], state[1])
                x = layer.after(x, o[:, None], z)
        choice = self.choose(t, x, torch.rand(B, c.vocab_size, device=self.device), self.temperature, self.banned)
        nxt = self.pos + 1
        given = self.out[self.index, nxt]
        answer = nxt >= self.prompt
        token = torch.where(answer & ~self.done, choice, given)
        stop = answer & ((token[:, None] == self.ends).any(1) | (nxt >= self.limit))
        self.end.copy_(torch.where(stop & ~self.done, nxt + 1, self.end))
        self.done |= stop
        self.out[self.index, nxt] = token
        self.token.copy_(token)
        self.pos.copy_(nxt.clamp(max=self.capacity - 2))

    @torch.no_grad()
    def advance(self, steps):
        with amp(self.device):
            if self.graph is None and self.fast and self.device == "cuda":
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(3):
                        self.one()
                torch.cuda.current_stream().wait_stream(side)
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph):
                    self.one()
                self.place(self.index, self.out * 0, self.prompt * 0 + 1, self.limit * 0 + 1, self.temperature * 0)
            for _ in range(steps):
                self.graph.replay() if self.graph else self.one()

    def place(self, rows, prompts, lengths, limits, temperature):
        """Start new prompts [n, <= capacity] in the given rows."""
        self.out[rows] = F.pad(prompts, (0, self.capacity - prompts.shape[1]))
        self.token[rows], self.pos[rows], self.prompt[rows], self.limit[rows] = prompts[:, 0], 0, lengths, limits
        self.temperature[rows], self.done[rows], self.end[rows] = temperature, False, 0
        for layer, state in zip(self.target.model.layers, self.state):
            if not layer.full:
                for s in state:
                    s[rows] = 0


@torch.no_grad()
def answers(target, prompts, lengths, new, temperature, ends, banned, device, capacity=None):
    """One batch to its end: prompts [N, P] padded, lengths [N] -> ids [N, capacity], end [N] (first place after the answer)."""
    capacity = capacity or -(-(prompts.shape[1] + new) // 64) * 64
    d = Decoder(target, len(prompts), capacity, ends, banned, device, fast=False)
    d.place(d.index, prompts, lengths, (lengths + new - 1).clamp(max=capacity - 1), torch.full((len(prompts),), float(temperature), device=device))
    while not d.done.all():
        d.advance(16)
    at = torch.arange(capacity, device=device)
    return torch.where(at < d.end[:, None], d.out, ends[0]), d.end


PARTS = ("attend", "before", "after")
EAGER = {name: getattr(Layer, name) for name in PARTS}


def compile_layers(on=True):
    """Compile the parts of a target layer around the recurrence (shared by all layers, once per shape), or undo it."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 64
    for name in PARTS:
        setattr(Layer, name, compiled(EAGER[name]) if on else EAGER[name])
