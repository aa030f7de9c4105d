"""The gated delta rule over whole rows: fla's kernels with one backward kernel replaced, and a plain chunked version.

q, k [B, T, H, Dk]; v [B, T, H, Dv]; g (log decay) and beta [B, T, H]. q and k are l2-normalised and q scaled inside.
`scan` starts as the plain version; `setup` switches to fla on a GPU when outputs and gradients agree with the recurrence.
"""
import torch
import torch.nn.functional as F


def unit(x):
    return x * torch.rsqrt(x.float().pow(2).sum(-1, keepdim=True) + 1e-6).to(x.dtype)


def step(q, k, v, g, beta, S):
    """One token: q, k, v [B, H, D], g, beta [B, H], S [B, H, Dk, Dv] float32 -> output [B, H, Dv], new S."""
    q, k = unit(q.float()) * q.shape[-1] ** -0.5, unit(k.float())
    S = S * g.float().exp()[..., None, None]
    d = (v.float() - torch.einsum("bhkv,bhk->bhv", S, k)) * beta.float()[..., None]
    S = S + k[..., None] * d[..., None, :]
    return torch.einsum("bhkv,bhk->bhv", S, q).to(v.dtype), S


def recurrence(q, k, v, g, beta):
    S, out = q.new_zeros(*q.shape[:1], *q.shape[2:], v.shape[-1], dtype=torch.float32), []
    for t in range(q.shape[1]):
        o, S = step(q[:, t], k[:, t], v[:, t], g[:, t], beta[:, t], S)
        out.append(o)
    return torch.stack(out, 1)


def chunked(q, k, v, g, beta, C=64):
    B, T, H, D = q.shape
    dt, N, pad = q.dtype, -(-T // C), -T % C

    def split(x):  # [B, T, H, ...] -> [B, N, H, C, ...]
        return F.pad(x, (0, 0) * (x.dim() - 2) + (0, pad)).reshape(B, N, C, H, -1).transpose(2, 3)

    q, k, v, beta = split(unit(q) * D**-0.5), split(unit(k)), split(v), split(beta.to(dt)[..., None])
    G = split(g[..., None])[..., 0].float().cumsum(-1)
    decay = torch.exp((G[..., :, None] - G[..., None, :]).clamp(max=0))
    lower = torch.ones(C, C, device=q.device, dtype=torch.bool).tril()
    A = torch.where(lower.tril(-1), ((k * beta) @ k.mT).float() * decay, 0.0)
    I = torch.eye(C, device=q.device)
    with torch.autocast(q.device.type, enabled=False):
        inverse = torch.linalg.solve_triangular(A.float() + I, I.expand_as(A), upper=False, unitriangular=True).to(dt)
    u, w = inverse @ (v * beta), inverse @ (k * beta * G.exp()[..., None].to(dt))
    inside = torch.where(lower, (q @ k.mT).float() * decay, 0.0).to(dt)
    qg, last = q * G.exp()[..., None].to(dt), G[..., -1:]
    kg = k * (last - G).exp()[..., None].to(dt)
    S, out = q.new_zeros(B, H, D, v.shape[-1], dtype=torch.float32), []
    for i in range(N):
        Sb = S.to(dt)
        new = u[:, i] - w[:, i] @ Sb
        out.append(qg[:, i] @ Sb + inside[:, i] @ new)
        S = S * last[:, i].exp()[..., None] + (kg[:, i].mT @ new).float()
    return torch.stack(out, 1).transpose(2, 3).reshape(B, N * C, H, -1)[:, :T]


_scan = chunked


def scan(q, k, v, g, beta):
    return _scan(q, k, v, g, beta)


def dqkwg(q, k, v, do, h, dh, w=None, g=None, g_gamma=None, dv=None, scale=None, state_v_first=False, cu_seqlens=None, chunk_size=64, chunk_indices=None):
    """What fla's chunk_bwd_dqkwg computes (that kernel is wrong on Hopper with Triton 3.4 to 3.7.0); g is in log2 units."""
    B, T, H, K = k.shape
    C, N, dt = chunk_size, T // chunk_size, do.dtype
    split = lambda x: x.view(B, N, C, H, -1).transpose(2, 3)
    q, k, v, do, dv = split(q), split(k), split(v).to(dt), split(do), split(dv).to(dt)
    g = g.view(B, N, C, H).transpose(2, 3).float()
    gl = g[..., -1:]
    h, dh = h.reshape(B, N, H, K, -1), dh.reshape(B, N, H, K, -1)
    dgl = (h.float() * dh.float()).sum((-1, -2)) * torch.exp2(gl[..., 0])
    h, dh = h.to(dt), dh.to(dt)
    ds = do @ v.mT
    dq = (do @ h.mT).float() * torch.exp2(g)[..., None] * scale
    dk = (v @ dh.mT).float() * torch.exp2(gl - g)[..., None]
    dw = -(dv @ h.mT)
    dgl = dgl + (dk * k.float()).sum((-1, -2))
    lower = torch.ones(C, C, device=q.device, dtype=torch.bool).tril()
    ds = (torch.where(lower, ds.float() * torch.exp2((g[..., :, None] - g[..., None, :]).clamp(max=0)), 0.0) * scale).to(dt)
    dq, dk = dq + (ds @ k).float(), dk + (ds.mT @ q).float()
    dg = (dq * q.float()).sum(-1) - (dk * k.float()).sum(-1)
    dg = torch.cat([dg[..., :-1], dg[..., -1:] + dgl[..., None]], -1)
    join = lambda x: x.transpose(2, 3).reshape(B, T, H, -1)
    return join(dq).to(q.dtype), join(dk).to(k.dtype), join(dw).to(w.dtype), dg.transpose(2, 3).reshape(B, T, H)


def compare(f, reference, device, T=192):
    """Relative errors of f (bf16) against reference (fp32): output, then the gradients of q, k, v, g, beta."""
    gen = torch.Generator(device=device).manual_seed(0)
    r = lambda *s: torch.randn(*s, device=device, generator=gen)
    x = [r(2, T, 4, 128), r(2, T, 4, 128), r(2, T, 4, 128), -r(2, T, 4).abs() * 0.2, torch.sigmoid(r(2, T, 4))]
    do, out = r(2, T, 4, 128), []
    for fn, dtype in ((f, torch.bfloat16), (reference, torch.float32)):
        y = [a.to(dtype if i < 3 else torch.float32).detach().requires_grad_() for i, a in enumerate(x)]
        o = fn(*y)
        (o.float() * do).sum().backward()
        out.append([o.detach().float()] + [a.grad.float() for a in y])
    return [round(((a - b).norm() / b.norm()).item(), 5) for a, b in zip(*out)]


def setup(device, log=print):
    """Choose the kernel: fla (patched) when its outputs and gradients agree with the plain recurrence, else the compiled chunked version."""
    global _scan
    if device == "cpu":
        return
    try:
        import fla.ops.gated_delta_rule.chunk as C
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
        C.chunk_bwd_dqkwg = torch.compile(dqkwg, dynamic=False)
        fla = lambda q, k, v, g, beta: chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0]
        e = compare(fla, recurrence, device)
        log("relative errors of fla (o, dq, dk, dv, dg, dbeta):", e)
        if max(e) < 0.03:
            _scan = fla
            return
    except Exception as x:
        log("fla failed:", repr(x)[:500])
    _scan = torch.compile(chunked, dynamic=False)
    log("relative errors of the chunked version:", compare(_scan, recurrence, device))
