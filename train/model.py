"""Training model of the backbone: whole sequences [B,S], no caches, tokens flattened to [B*S, ...] between attentions.

Two switches change its numerics:
  quant  : fake quantisation of everything the deployed model quantises (straight-through gradients)
  sparse : the indexers' top-k lists and the candidate pool really restrict the compressed attention
With both on, the result is the deployed model's prefill up to rounding order (tests/test_model.py compares).
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from . import ops
from .attention import Attend, candidate_pool, k_index_kl, k_index_scores, k_index_target, select
from .config import Cfg
from .sinkhorn import sinkhorn

BF = torch.bfloat16


def mat(*shape, std=None):
    return nn.Parameter(torch.randn(*shape) * (std if std is not None else shape[-1] ** -0.5))


def vec(n, v=1.0):
    return nn.Parameter(torch.full((n,), float(v)))


class Weights:
    """stored weights as the forward pass uses them: bf16, rounded to their number format if `quant`"""

    def __init__(self, quant):
        self.quant = quant

    def fp8(self, w):
        return ops.k_w8(w) if self.quant else w.to(BF)

    def fp4(self, w, dim):
        return ops.k_w4(w, dim) if self.quant else w.to(BF)

    def rows8(self, w):
        return ops.k_row8(w) if self.quant else w.to(BF)


class MoE(nn.Module):
    """Every expert computes every token and the router's zeros drop out: at these widths that is faster than gathering."""

    def __init__(self, c, E, K):
        super().__init__()
        D, I = c.D, c.moe_intermediate_size
        self.E, self.K, self.factor = E, K, c.routed_scaling_factor
        self.gate = mat(E, D)
        self.register_buffer("bias", torch.zeros(E))
        self.w1, self.w3 = mat(E, I, D), mat(E, I, D)
        self.w2t = mat(E, I, D, std=0.5 * I ** -0.5)                # w2 transposed
        self.s1, self.s3, self.s2 = mat(I, D), mat(I, D), mat(D, I, std=0.5 * I ** -0.5)

    def forward(self, x, xq, W):
        """x [T,D], xq its quantised form -> y [T,D], tokens per expert [E]"""
        r, load = ops.k_route(x, self.gate, self.bias, self.K, self.factor)
        w1, w3, w2 = W.fp4(self.w1, -1).flatten(0, 1), W.fp4(self.w3, -1).flatten(0, 1), W.fp4(self.w2t, -2).flatten(0, 1)
        y = ops.k_swiglu(xq @ w1.t(), xq @ w3.t(), r, W.quant) @ w2
        b = ops.k_swiglu(xq @ W.fp8(self.s1).t(), xq @ W.fp8(self.s3).t(), None, W.quant)
        return torch.addmm(y, b, W.fp8(self.s2).t()), load


class Attn(nn.Module):
    def __init__(self, c, l):
        super().__init__()
        D, H, hd, Q = c.D, c.H, c.hd, c.q_lora_rank
        self.c, self.l = c, l
        self.ratio = c.ratio[l]
        self.wq_a, self.q_norm, self.wq_b = mat(Q, D), vec(Q), mat(H * hd, Q)
        self.wkv, self.kv_norm = mat(hd, D), vec(hd)
        self.sink = vec(H, 0.0)
        self.wo_a = mat(c.o_groups, c.o_lora_rank, H // c.o_groups * hd)
        self.wo_b = mat(D, c.o_groups * c.o_lora_rank, std=0.5 * (c.o_groups * c.o_lora_rank) ** -0.5)
        back = l < c.L
        self.owns_kv = back and l in c.kv_source_layer_ids
        self.owns_ix = back and l in c.index_source_layer_ids
        if self.owns_kv:
            self.c_wkv, self.c_norm = mat(hd, D), vec(hd)
            if self.ratio > 1:
                self.c_wgate = mat(hd, D)
            self.i_wk, self.i_knorm = mat(c.index_head_dim, hd), vec(c.index_head_dim)
        if self.owns_ix:
            self.i_wqb = mat(c.index_n_heads * c.index_head_dim, Q)
            self.i_wp = mat(c.index_n_heads, D)

    def out(self, o, lse, cos, sin, W):
        """o [T,H,d], lse [T,H] -> y [T,D]"""
        o = ops.k_out(o, lse, self.sink, cos, sin, self.c.rd, self.c.o_groups)
        a = torch.bmm(o, W.fp8(self.wo_a).transpose(1, 2)).transpose(0, 1).flatten(1)
        if W.quant:
            a = ops.k_q8(a.contiguous())
        return a @ W.fp8(self.wo_b).t()


class Block(nn.Module):
    def __init__(self, c, l, E, K):
        super().__init__()
        self.c, self.l = c, l
        D = c.D
        self.attn_norm, self.ffn_norm = vec(D), vec(D)
        self.attn, self.ffn = Attn(c, l), MoE(c, E, K)
        spread = torch.tensor([0.6, 0.2, -0.2, -0.6])
        for n in ("attn", "ffn"):
            base = torch.zeros(24)
            base[:4] = -1.1
            base[(l + (n == "ffn") * 2) % 4] = 0.0                  # each sublayer reads one stream a little more
            base[4:8] = spread.roll(l)
            base[8:] = (3.0 * torch.eye(4)).flatten()
            self.register_parameter(f"hc_{n}_fn", nn.Parameter(torch.randn(24, 4 * D) * (4 * D) ** -0.5))
            self.register_parameter(f"hc_{n}_base", nn.Parameter(base))
            self.register_parameter(f"hc_{n}_scale", nn.Parameter(torch.full((3,), 0.2)))
        self.engram = l < c.L and l in c.engram_layer_ids
        if self.engram:
            i = c.engram_layer_ids.index(l)
            cols = (c.engram_max_ngram_size - 1) * c.engram_n_heads
            self.e_table = nn.Parameter(torch.randn(c.engram_num_embeddings[i], c.engram_head_dim) * 0.5)
            self.e_wkv = mat((c.hc + 1) * D, cols * c.engram_head_dim)
            self.e_q, self.e_k = nn.Parameter(torch.ones(c.hc, D)), nn.Parameter(torch.ones(c.hc, D))

    def mixes(self, h, n):
        g = lambda s: getattr(self, f"hc_{n}_{s}")
        pre, post, cl = ops.k_mix(h, g("fn"), g("scale"), g("base"))
        return pre, post, sinkhorn(cl, self.c.hc_sinkhorn_iters, self.c.hc_eps)


class Backbone(nn.Module):
    def __init__(self, raw):
        super().__init__()
        c = self.c = Cfg(raw)
        self.embed = nn.Parameter(torch.randn(c.vocab_size, c.D) * 0.3)
        self.layers = nn.ModuleList(Block(c, l, c.n_routed_experts, c.num_experts_per_tok) for l in range(c.L))
        self.norm = vec(c.D)
        self.head = nn.Parameter(torch.randn(c.vocab_size, c.D) * 0.5 * c.D ** -0.5)
        self.contexts = {}
        self.dropout = 0.0                                       # of sublayer outputs and Engram rows, while training

    def drop(self, x):
        return F.dropout(x, self.dropout) if self.dropout else x

    def context(self, B, S, device):
        """masks of the length, rotary tables of every token of the batch"""
        if (B, S) not in self.contexts:
            tables = {z: tuple(t.repeat(B, 1) for t in ops.rope_table(self.c, z, S, device)) for z in (False, True)}
            self.contexts[B, S] = Attend(self.c, S, device), tables
        return self.contexts[B, S]

    def forward(self, ids, rows, quant=False, sparse=False, seg=None, kl_q=None, want_taps=False):
        """ids [B,S]; rows [2,B,S,columns] of the Engram tables; seg [S]: first window row a decoder query sees, or None;
        kl_q: query positions sampled for the indexer loss, or None.
        -> final normalised hidden [B,S,D], dict(load [L,E], kl, taps [B,S,3D])"""
        c, W = self.c, Weights(quant)
        B, S = ids.shape
        T = B * S
        att, tables = self.context(B, S, ids.device)
        heads = lambda q: q.view(B, S, -1, q.shape[-1]).transpose(1, 2).contiguous()                  # [B,heads,S,d]
        h = F.embedding(ids.reshape(-1), self.embed.to(BF)).unsqueeze(1).expand(-1, c.hc, -1).contiguous()
        pre = torch.zeros(T, c.hc, device=ids.device)
        pre[:, 0] = 1
        loads, taps = [], []
        entries, keys, sel, pool = {}, {}, None, None
        index_loss = IndexLoss(att, kl_q)
        for l, b in enumerate(self.layers):
            a, ratio = b.attn, c.ratio[l]
            if b.engram:
                e = F.embedding(rows[c.engram_layer_ids.index(l)].flatten(0, 1), W.rows8(b.e_table)).flatten(1)
                h = ops.k_engram(h, F.linear(self.drop(e), W.fp8(b.e_wkv)), b.e_q, b.e_k)
            if want_taps and l in c.dspark_target_layer_ids:
                taps.append(h.float().mean(1).to(BF).view(B, S, -1))
            pre_attn, post, comb = b.mixes(h, "attn")
            x, xq = ops.k_collapse_norm(h, pre, b.attn_norm, quant)
            cos, sin = tables[ratio > 0]
            qr, qrq = ops.k_norm_q(F.linear(xq, W.fp8(a.wq_a)), a.q_norm, quant)
            q = heads(ops.k_rope_heads(F.linear(qrq, W.fp8(a.wq_b)), cos, sin, c.H, c.rd, False))
            kv = ops.k_kv(F.linear(xq, W.fp8(a.wkv)), a.kv_norm, cos, sin, c.rd, 1 if quant else 0).view(B, S, -1)
            if ratio:
                if a.owns_kv:
                    entries[l], keys[l] = self.compress(a, x, cos, sin, quant, (B, S // ratio))
                owner = c.kv_owner[l]
                if a.owns_ix and (sparse or kl_q is not None):
                    qi = heads(ops.k_rope_heads(F.linear(qrq.detach(), W.fp8(a.i_wqb)), cos, sin, c.index_n_heads, c.rd, quant))
                    wi = F.linear(x.detach(), a.i_wp.to(BF)).view(B, S, -1) * (c.index_head_dim ** -0.5 * c.index_n_heads ** -0.5)
                    if sparse:
                        sel, pool = self.choose(l, qi, wi, keys[owner], att.vis[ratio], pool)
                    index_loss.begin(qi, keys[owner], wi, ratio)
                kv = torch.cat((kv, entries[owner]), 1)
            o, lse = att(q, kv, ratio, sel if (ratio and sparse) else None, seg if l >= c.decoder_start else None)
            if ratio:
                index_loss.add(q, entries[owner], lse)
            y = a.out(o.transpose(1, 2).reshape(T, c.H, c.hd), lse.transpose(1, 2).reshape(T, c.H), cos, sin, W)
            h = ops.k_expand(h, self.drop(y), post, comb)
            pre_next, post, comb = b.mixes(h, "ffn")
            x, xq = ops.k_collapse_norm(h, pre_attn, b.ffn_norm, quant)
            y, load = b.ffn(x, xq, W)
            loads.append(load)
            h = ops.k_expand(h, self.drop(y), post, comb)
            pre = pre_next
        _, z = ops.k_collapse_norm_u(h, pre, self.norm)
        return z.view(B, S, -1), dict(load=torch.stack(loads), kl=index_loss.total(), taps=torch.cat(taps, -1) if taps else None)

    def compress(self, a, x, cos, sin, quant, shape):
        """-> compressed entries and index keys, [B,N,*]; the indexer learns from its own loss only"""
        c, ratio = self.c, a.ratio
        n = F.linear(x, a.c_wkv.to(BF))
        if ratio > 1:
            n = ops.k_pair(n, F.linear(x, a.c_wgate.to(BF)))
            cos, sin = cos[::ratio].contiguous(), sin[::ratio].contiguous()
        latent = ops.k_norm(n, a.c_norm)
        e = ops.k_kv(latent, None, cos, sin, c.rd, 2 if quant else 0)
        k = ops.k_kv(F.linear(latent.detach(), a.i_wk.to(BF)), a.i_knorm, cos, sin, c.rd, 3 if quant else 0)
        return e.view(*shape, -1), k.view(*shape, -1)

    @torch.no_grad()
    def choose(self, l, qi, wi, keys, vis, pool):
        """-> entries that the queries of layer l see, bool [B,S,N]; the candidate pool"""
        c, (_, n, S, _) = self.c, qi.shape
        d = torch.bmm(qi.flatten(1, 2), keys.transpose(1, 2)).unflatten(1, (n, S))
        scores = k_index_scores(d, wi)
        if l == c.candidate_source_layer_id:
            pool = candidate_pool(scores, vis, c.candidate_topk_blocks, c.candidate_block_size)
        return select(scores, vis, c.index_topk, pool if l > c.candidate_source_layer_id else None), pool

    def logits(self, z):
        return F.linear(z, self.head.to(BF))


class IndexLoss:
    """KL between an indexer's distribution and the attention of all layers that share its list, on sampled queries."""

    def __init__(self, att, kl_q):
        self.att, self.kl_q, self.open, self.sum = att, kl_q, None, 0.0

    def begin(self, qi, keys, wi, ratio):
        self.close()
        if self.kl_q is not None:
            self.open = dict(qs=qi[:, :, self.kl_q], ks=keys, ws=wi[:, self.kl_q], vis=self.att.vis[ratio][self.kl_q], t=0.0)

    @torch.no_grad()
    def add(self, q, entries, lse):
        if self.open is not None:
            o = self.open
            o["t"] = o["t"] + k_index_target(q[:, :, self.kl_q], entries, lse[:, :, self.kl_q], o["vis"])

    def close(self):
        if self.open is not None:
            o = self.open
            t = o["t"] / o["t"].sum(-1, keepdim=True).clamp_min(1e-9)
            self.sum = self.sum + k_index_kl(o["qs"], o["ks"], o["ws"], t, o["vis"])
            self.open = None

    def total(self):
        self.close()
        return self.sum
