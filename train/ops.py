"""The elementwise groups of the forward pass, each one compiled function over flattened tokens [T, ...].

Nothing here knows batch or sequence length, so a phase with other lengths and as many tokens compiles nothing again.
`quant` switches on the fake quantisation of activations: the value is rounded, the gradient passes straight through.
"""
import math
import os

import torch
import torch._dynamo
import torch.nn.functional as F

from .config import engram_multipliers, engram_primes
from .formats import q4i, q4kv, q8, row8, w4, w8

# one function serves many shapes, number formats and both phases: each is a compilation of its own
torch._dynamo.config.recompile_limit = 256
torch._dynamo.config.accumulated_recompile_limit = 4096

COMPILE = os.environ.get("TRAIN_COMPILE", "1") == "1" and torch.cuda.is_available()


def comp(f):
    return torch.compile(f, dynamic=False) if COMPILE else f


def ste(q, x):
    """value of q, gradient of x"""
    return q.detach() + (x - x.detach())


def _rms(x, w):
    """stored norm weights are bf16, so training sees them rounded"""
    f = x.float()
    return (w.to(torch.bfloat16) * (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-20))).to(torch.bfloat16)


@comp
def k_mix(h, fn, scale, base):
    """streams [..,4,D] -> pre, post, comb logits (fp32)"""
    x = h.flatten(-2)
    r = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-20)
    m = F.linear(x, fn.to(torch.bfloat16)).float() * r
    pre = torch.sigmoid(m[..., :4] * scale[0] + base[:4]) + 1e-6
    post = 2 * torch.sigmoid(m[..., 4:8] * scale[1] + base[4:8])
    c = m[..., 8:] * scale[2] + base[8:]
    return pre, post, c.unflatten(-1, (4, 4))


@comp
def k_collapse_norm(h, pre, w, quant: bool):
    u = (pre.unsqueeze(-1) * h.float()).sum(-2).to(torch.bfloat16)
    x = _rms(u, w)
    return x, (ste(q8(x), x) if quant else x)


@comp
def k_collapse_norm_u(h, pre, w):
    u = (pre.unsqueeze(-1) * h.float()).sum(-2).to(torch.bfloat16)
    return u, _rms(u, w)


@comp
def k_expand(h, y, post, comb):
    return (post.unsqueeze(-1) * y.float().unsqueeze(-2)
            + (comb.unsqueeze(-1) * h.float().unsqueeze(-2)).sum(-3)).to(torch.bfloat16)


@comp
def k_norm_q(x, w, quant: bool):
    y = _rms(x, w)
    return y, (ste(q8(y), y) if quant else y)


@comp
def k_norm(x, w):
    return _rms(x, w)


@comp
def k_q8(x):
    return ste(q8(x), x)


def _rot(x, cos, sin, rd, inverse=False):
    """rotate the last rd dims; cos/sin broadcast against x[..., rd/2]"""
    keep, p = x[..., :-rd], x[..., -rd:].float().unflatten(-1, (-1, 2))
    if inverse:
        sin = -sin
    a, b = p[..., 0], p[..., 1]
    y = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((keep, y.to(x.dtype)), -1)


@comp
def k_rope_heads(q, cos, sin, heads: int, rd: int, fp4: bool):
    """[T,heads*d] -> [T,heads,d], rotated; fp4: quantised as index queries are"""
    y = _rot(q.unflatten(-1, (heads, -1)), cos[:, None], sin[:, None], rd)
    return ste(q4i(y), y) if fp4 else y


@comp
def k_kv(x, w, cos, sin, rd: int, mode: int):
    """norm (w may be None), rotate, quantise; mode 0 none, 1 window FP8, 2 main FP4, 3 index FP4"""
    y = _rot(x if w is None else _rms(x, w), cos, sin, rd)
    return ste((q8, q4kv, q4i)[mode - 1](y), y) if mode else y


@comp
def k_out(o, lse, sink, cos, sin, rd: int, groups: int):
    """o [T,H,d], lse [T,H] plus the sink -> [groups,T,H/groups*d], rotated back"""
    o = (o.float() * torch.sigmoid(lse.float() - sink).unsqueeze(-1)).to(torch.bfloat16)
    return _rot(o, cos[:, None], sin[:, None], rd, inverse=True).flatten(1).unflatten(1, (groups, -1)).transpose(0, 1).contiguous()


@comp
def k_pair(k, g):
    """ratio-2 compressor: per-channel softmax over the two tokens of a pair; [T,d] -> [T/2,d]"""
    k, g = k.float().unflatten(0, (-1, 2)), g.float().unflatten(0, (-1, 2))
    return (k * torch.softmax(g, 1)).sum(1).to(torch.bfloat16)


@comp
def k_route(x, gw, bias, topk: int, factor: float):
    """-> dense routing weights [T,E] (0 where not chosen), chosen counts [E]"""
    l = F.linear(x.float(), gw.to(torch.bfloat16).float()).clamp(min=-40)
    s = torch.sqrt(F.softplus(l))
    idx = (s.detach() + bias).topk(topk, -1).indices
    hot = torch.zeros_like(s).scatter(-1, idx, 1.0)
    w = s * hot
    return w / (w.sum(-1, keepdim=True) + 1e-20) * factor, hot.sum(0)


@comp
def k_swiglu(g, u, r, quant: bool):
    """[T,E*I] x2, r [T,E] or None"""
    a = F.silu(g.float().clamp(max=10)) * u.float().clamp(-10, 10)
    if r is not None:
        a = (a.unflatten(-1, (r.shape[-1], -1)) * r.unsqueeze(-1)).flatten(-2)
    a = a.to(torch.bfloat16)
    return ste(q8(a), a) if quant else a


@comp
def k_engram(h, kvv, qw, kw):
    """streams h [T,n,D]; kvv [T,(n+1)*D]: a key per stream, then the value"""
    n, D = h.shape[1:]
    key, val = kvv[:, : n * D].float().unflatten(-1, (n, D)), kvv[:, n * D:].float()
    hf, w = h.float(), qw.to(torch.bfloat16).float() * kw.to(torch.bfloat16).float()
    rs = torch.rsqrt(hf.square().mean(-1) + 1e-20) * torch.rsqrt(key.square().mean(-1) + 1e-20)
    dot = (hf * w * key).sum(-1) * rs * D ** -0.5
    gate = torch.sigmoid(torch.sign(dot) * dot.abs().clamp_min(1e-6).sqrt())
    return (hf + gate.unsqueeze(-1) * val.unsqueeze(1)).to(torch.bfloat16)


@comp
def k_xent(logits, target, weight):
    """weighted mean cross entropy, logits bf16 [T,V]"""
    l = logits.float()
    nll = torch.logsumexp(l, -1) - l.gather(-1, target[:, None]).squeeze(-1)
    return (nll * weight).sum() / weight.sum().clamp_min(1)


@comp
def k_w8(w):
    return ste(w8(w), w.to(torch.bfloat16))


@comp
def k_w4(w, dim: int):
    return ste(w4(w, dim), w.to(torch.bfloat16))


@comp
def k_row8(w):
    return ste(row8(w), w.to(torch.bfloat16))


class EngramHash:
    def __init__(self, cfg, token_map, device="cpu"):
        n = cfg.engram_max_ngram_size
        primes = engram_primes(len(cfg.engram_layer_ids), n, cfg.engram_n_heads, cfg.engram_vocab_size)
        mult = engram_multipliers(cfg.engram_layer_ids, n, cfg.engram_compressed_vocab_size)
        self.n, self.map = n, torch.tensor(token_map, dtype=torch.int64, device=device)
        self.pad = int(self.map[cfg.engram_pad_token_id])
        self.primes = torch.tensor(primes, dtype=torch.int64, device=device)           # [layers, n-1, heads]
        flat = self.primes.flatten(1)
        self.off = torch.cumsum(flat, 1) - flat
        self.mult = torch.tensor(mult, dtype=torch.int64, device=device)               # [layers, n]

    def __call__(self, ids):
        """ids [B,S] -> rows [layers, B, S, (n-1)*heads]; the sequence starts at position 0."""
        c = self.map[ids.long()]
        shifted = [c] + [torch.nn.functional.pad(c, (i, 0), value=self.pad)[:, : c.shape[1]] for i in range(1, self.n)]
        out = []
        for l in range(self.primes.shape[0]):
            h, cols = shifted[0] * self.mult[l, 0], []
            for i in range(1, self.n):
                h = h ^ (shifted[i] * self.mult[l, i])
                cols.append(h[..., None] % self.primes[l, i - 1])
            out.append(torch.cat(cols, -1) + self.off[l])
        return torch.stack(out)


def rope_freqs(cfg, compressed):
    n = cfg.rd
    i = torch.arange(0, n, 2, dtype=torch.float32)
    if not compressed:
        return 1.0 / (float(cfg.rope_theta) ** (i / n))
    base, rs = float(cfg.compress_rope_theta), cfg.rope_scaling
    f = 1.0 / (base ** (i / n))
    turn = lambda r: n * math.log(rs["original_max_position_embeddings"] / (2 * math.pi * r)) / (2 * math.log(base))
    lo = max(math.floor(turn(rs["beta_fast"])), 0)
    hi = min(math.ceil(turn(rs["beta_slow"])), n - 1)
    ramp = ((torch.arange(n // 2, dtype=torch.float32) - lo) / max(hi - lo, 1e-3)).clamp(0, 1)
    return f / rs["factor"] * ramp + f * (1 - ramp)


def rope_table(cfg, compressed, length, device="cpu"):
    a = torch.outer(torch.arange(length, dtype=torch.float32), rope_freqs(cfg, compressed))
    return a.cos().to(device), a.sin().to(device)
