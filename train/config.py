"""config.json of the bundled model: its sizes, the Engram integers that follow from them, and who owns which cache.

No torch here: sizes.py and the data scripts run without it.
usage: python3 -m train.config TOKENIZER OUT [KEY=JSON ...]
"""
import json
import sys

import numpy as np


def is_prime(n):
    if n < 2:
        return False
    if n % 2 == 0:
        return n == 2
    f = 3
    while f * f <= n:
        if n % f == 0:
            return False
        f += 2
    return True


def engram_primes(n_layers, max_ngram, n_heads, start):
    """Primes [layer][ngram-2][head]. Each (layer, n-gram size) restarts at `start`; a prime is never used twice."""
    used, out = set(), []
    for _ in range(n_layers):
        per_layer = []
        for _ in range(2, max_ngram + 1):
            row, c = [], start - 1
            for _ in range(n_heads):
                c += 1
                while c in used or not is_prime(c):
                    c += 1
                used.add(c)
                row.append(c)
            per_layer.append(row)
        out.append(per_layer)
    return out


def engram_multipliers(layer_ids, max_ngram, compressed_vocab):
    """Odd 64-bit multipliers; v*M stays below 2^63 for every compressed id v."""
    bound = max(1, (np.iinfo(np.int64).max // compressed_vocab) // 2)
    return [[int(v) * 2 + 1 for v in np.random.default_rng(10007 * l).integers(0, bound, size=(max_ngram,), dtype=np.int64)]
            for l in layer_ids]


def compressed_token_map(tok):
    """raw id -> compressed id, numbered by first sight. `tok` is a tokenizers.Tokenizer."""
    from tokenizers import Regex, normalizers as N
    mark = "\ue000"
    norm = N.Sequence([N.NFKC(), N.NFD(), N.StripAccents(), N.Lowercase(), N.Replace(Regex(r"[ \t\r\n]+"), " "),
                       N.Replace(Regex(r"^ $"), mark), N.Strip(), N.Replace(mark, " ")])
    seen, table = {}, []
    for i in range(tok.get_vocab_size(with_added_tokens=True)):
        text = tok.decode([i], skip_special_tokens=False)
        key = tok.id_to_token(i) if "\ufffd" in text else (norm.normalize_str(text) or text)
        table.append(seen.setdefault(key, len(seen)))
    return table, len(seen)


# Every size is explained in README.md. `micro` is what the tests train.
MINI = dict(
    hidden_size=256, moe_intermediate_size=128, num_hidden_layers=12, num_attention_heads=4, head_dim=128, qk_rope_head_dim=32,
    q_lora_rank=128, o_lora_rank=128, o_groups=2, n_routed_experts=16, num_experts_per_tok=6, sliding_window=128,
    compress_ratios=[0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0, 0], kv_source_layer_ids=[2, 4, 6],
    index_source_layer_ids=[2, 4, 6, 8, 10], index_n_heads=4, index_head_dim=64, index_topk=64, candidate_source_layer_id=6,
    candidate_topk_blocks=32, candidate_block_size=8, engram_layer_ids=[1, 4], engram_max_ngram_size=4, engram_vocab_size=2700,
    engram_n_heads=4, engram_head_dim=32, num_nextn_predict_layers=3, dspark_block_size=5, dspark_target_layer_ids=[9, 10, 11],
    dspark_markov_rank=32, dspark_n_routed_experts=8, dspark_num_experts_per_tok=3)
MICRO = dict(
    MINI, hidden_size=64, moe_intermediate_size=32, head_dim=64, q_lora_rank=64, o_lora_rank=32, n_routed_experts=4,
    num_experts_per_tok=2, index_topk=16, candidate_topk_blocks=6, engram_vocab_size=50, dspark_n_routed_experts=4,
    dspark_num_experts_per_tok=2)


def make_config(tok, sizes):
    """every key of the released config.json. `tok`: a tokenizers.Tokenizer"""
    t = dict(
        model_type="deepseek_v41_text", vocab_size=tok.get_vocab_size(with_added_tokens=True), num_key_value_heads=1,
        hidden_act="silu", swiglu_limit=10.0, rms_norm_eps=1e-20, attention_bias=False, attention_dropout=0.0,
        initializer_range=0.02, use_cache=True, tie_word_embeddings=False, max_position_embeddings=16384, rope_theta=10000,
        rope_scaling=dict(rope_type="yarn", factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=65536),
        compress_rope_theta=160000, n_shared_experts=1, scoring_func="sqrtsoftplus", topk_method="noaux_tc",
        norm_topk_prob=True, routed_scaling_factor=1.5, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, engram_pad_token_id=2,
        dspark_noise_token_id=tok.token_to_id("<｜System｜>"), dtype="bfloat16")
    t.update(sizes)
    primes = engram_primes(len(t["engram_layer_ids"]), t["engram_max_ngram_size"], t["engram_n_heads"], t["engram_vocab_size"])
    t["engram_num_embeddings"] = [sum(p for g in layer for p in g) for layer in primes]
    t["engram_compressed_vocab_size"] = compressed_token_map(tok)[1]
    return dict(
        architectures=["DeepseekV41ForCausalLM"], model_type="deepseek_v41", dtype="bfloat16", bos_token_id=0, eos_token_id=1,
        pad_token_id=2, image_token_id=tok.token_to_id("<｜deepseek_image｜>"), vision_config=None, text_config=t,
        quantization_config=dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=[32, 32],
                                 scale_fmt="ue8m0", expert_dtype="fp4"))


class Cfg:
    """Attribute view on config.json's text_config."""

    def __init__(self, d):
        self.raw = d
        self.__dict__.update(d["text_config"])
        self.D, self.H, self.hd, self.rd = self.hidden_size, self.num_attention_heads, self.head_dim, self.qk_rope_head_dim
        self.L, self.W, self.hc = self.num_hidden_layers, self.sliding_window, self.hc_mult
        self.ratio = self.compress_ratios
        # which layer owns the cache / the index list that a layer reads (-1: none)
        self.kv_owner = [max([s for s in self.kv_source_layer_ids if s <= l], default=-1) if self.ratio[l] else -1 for l in range(self.L)]
        self.ix_owner = [max([s for s in self.index_source_layer_ids if s <= l], default=-1) if self.ratio[l] else -1 for l in range(self.L)]
        self.decoder_start = self.candidate_source_layer_id


def main():
    from tokenizers import Tokenizer
    over = {k: json.loads(v) for k, v in (a.split("=", 1) for a in sys.argv[3:])}
    raw = make_config(Tokenizer.from_file(sys.argv[1]), dict(MINI, **over))
    with open(sys.argv[2], "w", encoding="utf8") as f:
        json.dump(raw, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
