"""Fill the training model from an exported checkpoint: stored values lie on the quantisation grids, so quantising them again
changes nothing. Serves a later phase C on a kept backbone, and the tests."""
import json
import os
import struct

import numpy as np
import torch

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def power(scale_bytes):
    return np.ldexp(np.float32(1), scale_bytes.astype(np.int32) - 127).astype(np.float32)


class Store:
    """tensor name -> float32 values"""

    def __init__(self, folder):
        self.t = {}
        for f in sorted(os.listdir(folder)):
            if f.endswith(".safetensors"):
                with open(os.path.join(folder, f), "rb") as fh:
                    buf = fh.read()
                n = struct.unpack("<Q", buf[:8])[0]
                for k, v in json.loads(buf[8:8 + n]).items():
                    if k != "__metadata__":
                        a, b = v["data_offsets"]
                        self.t[k] = v["dtype"], v["shape"], np.frombuffer(buf, np.uint8, b - a, 8 + n + a)

    def plain(self, name):
        dtype, shape, raw = self.t[name]
        a = raw.view(np.float32) if dtype == "F32" else (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return torch.from_numpy(a.reshape(shape).copy())

    def quantised(self, name):
        """fp8, fp4 or rows8; they differ in dtype and in the shape of the scales"""
        dtype, shape, raw = self.t[name + ".weight"]
        _, scale_shape, scale = self.t[name + ".scale"]
        s = power(scale).reshape(scale_shape)
        if dtype == "I8":
            w = np.stack([E2M1[raw & 15], E2M1[raw >> 4]], -1).reshape(shape[0], -1)
        else:
            w = torch.from_numpy(raw.copy()).view(torch.float8_e4m3fn).float().numpy().reshape(shape)
            if scale_shape[0] != shape[0]:
                s = np.repeat(s, 32, 0)
        return torch.from_numpy(w * np.repeat(s, 32, 1))


def fill_block(b, S, p):
    a, f = b.attn, b.ffn

    def put(dst, src):
        dst.data.copy_(src.reshape(dst.shape))

    for n in ("attn", "ffn"):
        put(getattr(b, n + "_norm"), S.plain(p + n + "_norm.weight"))
        for s in ("fn", "base", "scale"):
            put(getattr(b, f"hc_{n}_{s}"), S.plain(p + f"hc_{n}_{s}"))
    q = p + "attn."
    for n in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b"):
        put(getattr(a, n), S.quantised(q + n))
    put(a.q_norm, S.plain(q + "q_norm.weight")), put(a.kv_norm, S.plain(q + "kv_norm.weight")), put(a.sink, S.plain(q + "attn_sink"))
    if a.owns_kv:
        put(a.c_wkv, S.plain(q + "compressor.wkv.weight")), put(a.c_norm, S.plain(q + "compressor.norm.weight"))
        if a.ratio > 1:
            put(a.c_wgate, S.plain(q + "compressor.wgate.weight"))
        put(a.i_wk, S.plain(q + "indexer.wk.weight")), put(a.i_knorm, S.plain(q + "indexer.k_norm.weight"))
    if a.owns_ix:
        put(a.i_wqb, S.quantised(q + "indexer.wq_b")), put(a.i_wp, S.plain(q + "indexer.weights_proj.weight"))
    put(f.gate, S.plain(p + "ffn.gate.weight")), f.bias.copy_(S.plain(p + "ffn.gate.bias"))
    for e in range(f.E):
        x = p + f"ffn.experts.{e}."
        f.w1.data[e], f.w3.data[e], f.w2t.data[e] = S.quantised(x + "w1"), S.quantised(x + "w3"), S.quantised(x + "w2").t()
    for n in ("1", "2", "3"):
        put(getattr(f, "s" + n), S.quantised(p + "ffn.shared_experts.w" + n))
    if b.engram:
        put(b.e_table, S.quantised(p + "engram.embed")), put(b.e_wkv, S.quantised(p + "engram.wkv"))
        put(b.e_q, S.plain(p + "engram.q_weight")), put(b.e_k, S.plain(p + "engram.k_weight"))


@torch.no_grad()
def fill(net, draft, folder):
    """either may be None"""
    S = Store(folder)
    if net is not None:
        net.embed.data.copy_(S.plain("embed.weight")), net.norm.data.copy_(S.plain("norm.weight"))
        net.head.data.copy_(S.plain("head.weight"))
        for l, b in enumerate(net.layers):
            fill_block(b, S, f"layers.{l}.")
    if draft is not None:
        for i, b in enumerate(draft.stages):
            fill_block(b, S, f"mtp.{i}.")
        z = f"mtp.{len(draft.stages) - 1}."
        for dst, src in ((draft.main_proj, S.quantised("mtp.0.main_proj")), (draft.main_norm, S.plain("mtp.0.main_norm.weight")),
                         (draft.norm, S.plain(z + "norm.weight")), (draft.m_embed, S.plain(z + "markov_head.embed.weight")),
                         (draft.m_head, S.plain(z + "markov_head.head.weight")),
                         (draft.conf, S.plain(z + "confidence_head.proj.weight"))):
            dst.data.copy_(src)
