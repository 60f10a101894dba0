"""The released number formats in torch: the same rounding serves fake quantisation in training and the export.

E4M3 and E2M1 codes with power-of-two scales (UE8M0), and FP4 with an E4M3 scale for compressed cache rows. Rounding is to
nearest, ties to even; scales are the smallest power of two that keeps the block in range.
"""
import numpy as np
import torch

INV448 = float(np.float32(1.0) / np.float32(448.0))
INV6 = float(np.float32(1.0) / np.float32(6.0))


def pow2_ceil(v):
    """smallest power of two >= v (v > 0, fp32), from the bits"""
    return ((v.contiguous().view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def e2m1(v):
    """round |v| <= 6 to the E2M1 grid, ties to the even code (sign kept)"""
    a = v.abs()
    lo = torch.round(a * 2) * 0.5
    mid = torch.round(a)
    hi = torch.round(a * 0.5) * 2
    r = torch.where(a < 2, lo, torch.where(a < 4, mid, hi))
    return torch.copysign(r, v)


def q8_parts(x):
    """blocks of 32 along the last axis -> (scaled values on the E4M3 grid, scale)"""
    g = x.float().unflatten(-1, (-1, 32))
    s = pow2_ceil(g.abs().amax(-1, keepdim=True).clamp_min(1e-4) * INV448)
    return (g / s).clamp(-448, 448).to(torch.float8_e4m3fn).float(), s


def q8(x):
    v, s = q8_parts(x)
    return (v * s).flatten(-2).to(x.dtype)


def q4i(x):
    g = x.float().unflatten(-1, (-1, 32))
    s = pow2_ceil(g.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0 ** -126) * INV6)
    return (e2m1((g / s).clamp(-6, 6)) * s).flatten(-2).to(x.dtype)


def q4kv(x):
    g = x.float().unflatten(-1, (-1, 16))
    s = (g.abs().amax(-1, keepdim=True).clamp_min(6 * 2.0 ** -9) / 6.0).clamp(max=448).to(torch.float8_e4m3fn).float()
    return (e2m1((g / s).clamp(-6, 6)) * s).flatten(-2).to(x.dtype)


def w8_parts(w):
    """dense weight [..., N, K], one scale per 32x32 block -> (grid values, scales [..., N/32, 1, K/32, 1])"""
    g = w.float().unflatten(-1, (-1, 32)).unflatten(-3, (-1, 32))
    s = pow2_ceil(g.abs().amax((-3, -1), keepdim=True).clamp_min(1e-4) * INV448)
    return (g / s).clamp(-448, 448).to(torch.float8_e4m3fn).float(), s


def w8(w):
    v, s = w8_parts(w)
    return (v * s).flatten(-4, -3).flatten(-2).to(torch.bfloat16)


def w4_parts(w, dim):
    """FP4 weight; blocks of 32 along `dim` (-1 or -2)"""
    g = w.float().unflatten(dim, (-1, 32))
    s = pow2_ceil(g.abs().amax(dim, keepdim=True).clamp_min(6 * 2.0 ** -126) * INV6)
    return e2m1((g / s).clamp(-6, 6)), s


def w4(w, dim=-1):
    v, s = w4_parts(w, dim)
    y = v * s
    return (y.flatten(-2) if dim == -1 else y.flatten(-3, -2)).to(torch.bfloat16)


def row8(w):
    """Engram rows: E4M3 with one scale per 32 columns of a row"""
    v, s = q8_parts(w.float())
    return (v * s).flatten(-2).to(torch.bfloat16)
