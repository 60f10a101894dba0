"""Checkpoint folder in the released layout: safetensors, config, tokenizer, generation defaults, Engram token map.

The rounding is the fake quantisation that the model was trained with, so exporting changes nothing.
"""
import json
import os
import shutil
import struct

import numpy as np
import torch
from .config import compressed_token_map
from .formats import q8_parts, w4_parts, w8_parts

ST_NAME = {"bf16": "BF16", "f32": "F32", "e4m3": "F8_E4M3", "e8m0": "F8_E8M0", "i8": "I8"}


def write_json(path, value, **kw):
    with open(path, "w", encoding="utf8") as f:
        json.dump(value, f, ensure_ascii=False, **kw)


def scale_byte(s):
    """power-of-two scale -> E8M0 byte"""
    return ((s.contiguous().view(torch.int32) >> 23) & 0xFF).to(torch.uint8)


class Writer:
    def __init__(self):
        self.t = {}

    def raw(self, name, kind, tensor):
        b = tensor.detach().contiguous().cpu()
        shape = list(b.shape)
        data = b.view(torch.uint8).numpy().tobytes() if b.numel() else b""
        self.t[name] = (ST_NAME[kind], shape, data)

    def bf16(self, name, x):
        self.raw(name, "bf16", x.detach().to(torch.bfloat16))

    def f32(self, name, x):
        self.raw(name, "f32", x.detach().float())

    def fp8(self, name, w):
        """w [N,K] -> name.weight, name.scale"""
        v, s = w8_parts(w.detach())
        n, k = w.shape
        self.raw(name + ".weight", "e4m3", v.flatten(-4, -3).flatten(-2).to(torch.float8_e4m3fn).view(torch.uint8))
        self.raw(name + ".scale", "e8m0", scale_byte(s.view(n // 32, k // 32)))

    def rows8(self, name, w):
        v, s = q8_parts(w.detach().float())
        self.raw(name + ".weight", "e4m3", v.flatten(-2).to(torch.float8_e4m3fn).view(torch.uint8))
        self.raw(name + ".scale", "e8m0", scale_byte(s.squeeze(-1)))

    def fp4(self, name, w):
        """w [N,K], blocks along K"""
        v, s = w4_parts(w.detach(), -1)
        v = v.flatten(-2)
        grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=v.device)
        code = torch.searchsorted(grid, v.abs().contiguous()).to(torch.uint8) | (torch.signbit(v).to(torch.uint8) << 3)
        self.raw(name + ".weight", "i8", code[:, 0::2] | (code[:, 1::2] << 4))
        self.raw(name + ".scale", "e8m0", scale_byte(s.squeeze(-1)))

    def save(self, folder, n_files):
        os.makedirs(folder, exist_ok=True)
        total = sum(len(d) for _, _, d in self.t.values())
        groups, size = [[]], 0
        for name, (_, _, d) in self.t.items():
            if size + len(d) > total / n_files * 1.02 and len(groups) < n_files:
                groups.append([])
                size = 0
            groups[-1].append(name)
            size += len(d)
        index = {}
        for i, names in enumerate(groups):
            f = f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors"
            names.sort(key=lambda k: -{"F32": 4, "BF16": 2}.get(self.t[k][0], 1))          # keeps every tensor aligned
            head, off = {"__metadata__": {"format": "pt"}}, 0
            for k in names:
                dt, shape, d = self.t[k]
                head[k] = dict(dtype=dt, shape=shape, data_offsets=[off, off + len(d)])
                off += len(d)
                index[k] = f
            h = json.dumps(head, separators=(",", ":")).encode()
            h += b" " * (-len(h) % 8)
            with open(f"{folder}/{f}", "wb") as fh:
                fh.write(struct.pack("<Q", len(h)))
                fh.write(h)
                for k in names:
                    fh.write(self.t[k][2])
        write_json(f"{folder}/model.safetensors.index.json", dict(metadata=dict(total_size=total), weight_map=index))
        return total


def export_block(W, p, b):
    a, f = b.attn, b.ffn
    W.bf16(p + "attn_norm.weight", b.attn_norm), W.bf16(p + "ffn_norm.weight", b.ffn_norm)
    for n in ("attn", "ffn"):
        for s in ("fn", "base", "scale"):
            W.f32(p + f"hc_{n}_{s}", getattr(b, f"hc_{n}_{s}"))
    q = p + "attn."
    W.fp8(q + "wq_a", a.wq_a), W.bf16(q + "q_norm.weight", a.q_norm), W.fp8(q + "wq_b", a.wq_b)
    W.fp8(q + "wkv", a.wkv), W.bf16(q + "kv_norm.weight", a.kv_norm), W.f32(q + "attn_sink", a.sink)
    W.fp8(q + "wo_a", a.wo_a.flatten(0, 1)), W.fp8(q + "wo_b", a.wo_b)
    if a.owns_kv:
        W.bf16(q + "compressor.wkv.weight", a.c_wkv)
        if a.ratio > 1:
            W.bf16(q + "compressor.wgate.weight", a.c_wgate)
        W.bf16(q + "compressor.norm.weight", a.c_norm)
        W.bf16(q + "indexer.wk.weight", a.i_wk), W.bf16(q + "indexer.k_norm.weight", a.i_knorm)
    if a.owns_ix:
        W.fp8(q + "indexer.wq_b", a.i_wqb), W.bf16(q + "indexer.weights_proj.weight", a.i_wp)
    W.bf16(p + "ffn.gate.weight", f.gate), W.f32(p + "ffn.gate.bias", f.bias), W.f32(p + "ffn.gate.bias_vl", f.bias)
    for e in range(f.E):
        W.fp4(p + f"ffn.experts.{e}.w1", f.w1[e]), W.fp4(p + f"ffn.experts.{e}.w3", f.w3[e]), W.fp4(p + f"ffn.experts.{e}.w2", f.w2t[e].t())
    W.fp8(p + "ffn.shared_experts.w1", f.s1), W.fp8(p + "ffn.shared_experts.w3", f.s3), W.fp8(p + "ffn.shared_experts.w2", f.s2)
    if b.engram:
        W.rows8(p + "engram.embed", b.e_table)
        W.fp8(p + "engram.wkv", b.e_wkv)
        W.bf16(p + "engram.q_weight", b.e_q), W.bf16(p + "engram.k_weight", b.e_k)


def export(net, draft, raw, folder, tokenizer, temperatures=None, n_files=3):
    """-> payload bytes. `tokenizer`: path of tokenizer.json; `temperatures`: of the confidences, one per draft position"""
    W = Writer()
    W.bf16("embed.weight", net.embed)
    for l, b in enumerate(net.layers):
        export_block(W, f"layers.{l}.", b)
    W.bf16("norm.weight", net.norm), W.bf16("head.weight", net.head)
    for i, b in enumerate(draft.stages):
        export_block(W, f"mtp.{i}.", b)
    W.fp8("mtp.0.main_proj", draft.main_proj), W.bf16("mtp.0.main_norm.weight", draft.main_norm)
    z = f"mtp.{len(draft.stages) - 1}."
    W.bf16(z + "norm.weight", draft.norm)
    W.bf16(z + "markov_head.embed.weight", draft.m_embed), W.bf16(z + "markov_head.head.weight", draft.m_head)
    W.bf16(z + "confidence_head.proj.weight", draft.conf)
    total = W.save(folder, n_files)
    write_companions(folder, raw, tokenizer, temperatures)
    return total


def write_companions(folder, raw, tokenizer, temperatures=None):
    """everything but the weights"""
    from tokenizers import Tokenizer
    t = raw["text_config"]
    put = lambda name, value: write_json(f"{folder}/{name}", value, indent=1)
    put("config.json", raw)
    shutil.copyfile(tokenizer, f"{folder}/tokenizer.json")
    table, n = compressed_token_map(Tokenizer.from_file(tokenizer))
    assert n == t["engram_compressed_vocab_size"], "config.json belongs to another tokenizer"
    np.array(table, "<i4").tofile(f"{folder}/engram_token_map.i32")
    put("tokenizer_config.json", dict(
        add_bos_token=False, add_eos_token=False, bos_token="<｜begin▁of▁sentence｜>", eos_token="<｜end▁of▁sentence｜>",
        pad_token="<｜▁pad▁｜>", unk_token=None, clean_up_tokenization_spaces=False,
        model_max_length=t["max_position_embeddings"], tokenizer_class="PreTrainedTokenizerFast"))
    # the release has no place for the temperatures of the confidence head; this key is ours, other readers ignore it
    extra = dict(dspark_confidence_temperatures=temperatures) if temperatures else {}
    put("generation_config.json", dict(_from_model_config=True, bos_token_id=0, eos_token_id=1, pad_token_id=2, do_sample=True,
                                       temperature=0.6, top_p=0.95, **extra))
