"""Every tensor of the released layout for a configuration: name, number format, shape. No torch, no weights.

Formats: f32, bf16, fp8 (E4M3 + a UE8M0 scale per 32x32 block), fp4 (two E2M1 codes a byte + a UE8M0 scale per 32 columns of a
row), rows8 (E4M3 + a UE8M0 scale per 32 columns of a row: Engram tables).
"""


def stored_bytes(kind, shape):
    """-> (of the values, of the scales)"""
    n = 1
    for s in shape:
        n *= s
    return {"f32": (4 * n, 0), "bf16": (2 * n, 0), "fp8": (n, n // 1024), "fp4": (n // 2, n // 32), "rows8": (n, n // 32)}[kind]


def block(c, prefix, layer, experts):
    D, H, hd, Q, I = c.D, c.H, c.hd, c.q_lora_rank, c.moe_intermediate_size
    a, f = prefix + "attn.", prefix + "ffn."
    yield from ((prefix + n, "bf16", (D,)) for n in ("attn_norm.weight", "ffn_norm.weight"))
    for n in ("attn", "ffn"):
        yield from ((prefix + f"hc_{n}_{k}", "f32", s) for k, s in (("fn", (24, 4 * D)), ("base", (24,)), ("scale", (3,))))
    yield a + "wq_a", "fp8", (Q, D)
    yield a + "q_norm.weight", "bf16", (Q,)
    yield a + "wq_b", "fp8", (H * hd, Q)
    yield a + "wkv", "fp8", (hd, D)
    yield a + "kv_norm.weight", "bf16", (hd,)
    yield a + "attn_sink", "f32", (H,)
    yield a + "wo_a", "fp8", (c.o_groups * c.o_lora_rank, H // c.o_groups * hd)
    yield a + "wo_b", "fp8", (D, c.o_groups * c.o_lora_rank)
    if layer in c.kv_source_layer_ids:
        yield a + "compressor.wkv.weight", "bf16", (hd, D)
        if c.ratio[layer] > 1:
            yield a + "compressor.wgate.weight", "bf16", (hd, D)
        yield a + "compressor.norm.weight", "bf16", (hd,)
        yield a + "indexer.wk.weight", "bf16", (c.index_head_dim, hd)
        yield a + "indexer.k_norm.weight", "bf16", (c.index_head_dim,)
    if layer in c.index_source_layer_ids:
        yield a + "indexer.wq_b", "fp8", (c.index_n_heads * c.index_head_dim, Q)
        yield a + "indexer.weights_proj.weight", "bf16", (c.index_n_heads, D)
    yield f + "gate.weight", "bf16", (experts, D)
    yield from ((f + n, "f32", (experts,)) for n in ("gate.bias", "gate.bias_vl"))
    parts = (("w1", (I, D)), ("w3", (I, D)), ("w2", (D, I)))
    for e in range(experts):
        yield from ((f + f"experts.{e}.{n}", "fp4", s) for n, s in parts)
    yield from ((f + f"shared_experts.{n}", "fp8", s) for n, s in parts)
    if layer in c.engram_layer_ids:
        g = prefix + "engram."
        columns = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
        yield g + "embed", "rows8", (c.engram_num_embeddings[c.engram_layer_ids.index(layer)], c.engram_head_dim)
        yield g + "wkv", "fp8", ((c.hc + 1) * D, columns)
        yield from ((g + n, "bf16", (c.hc, D)) for n in ("q_weight", "k_weight"))


def tensors(c):
    """-> (name, kind, shape); a quantised name stands for NAME.weight and NAME.scale"""
    V, D, R, last = c.vocab_size, c.D, c.dspark_markov_rank, f"mtp.{c.num_nextn_predict_layers - 1}."
    yield "embed.weight", "bf16", (V, D)
    for layer in range(c.L):
        yield from block(c, f"layers.{layer}.", layer, c.n_routed_experts)
    yield "norm.weight", "bf16", (D,)
    yield "head.weight", "bf16", (V, D)
    for i in range(c.num_nextn_predict_layers):
        yield from block(c, f"mtp.{i}.", c.L + i, c.dspark_n_routed_experts)
    yield "mtp.0.main_proj", "fp8", (D, D * len(c.dspark_target_layer_ids))
    yield "mtp.0.main_norm.weight", "bf16", (D,)
    yield last + "norm.weight", "bf16", (D,)
    yield last + "markov_head.embed.weight", "bf16", (V, R)
    yield last + "markov_head.head.weight", "bf16", (V, R)
    yield last + "confidence_head.proj.weight", "bf16", (1, D + R)
