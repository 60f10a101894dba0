"""DSpark: the drafter, trained on the frozen backbone's taps, with anchors in the middle of known text."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from . import ops
from .config import Cfg
from .model import BF, Block, Weights, mat, vec
from .ops import comp


@comp
def k_block_attn(q, keys, ok):
    """q [A,H,n,d], keys [A,K,d], ok [A,K] -> o [A,n,H,d], log-sum-exp [A,n,H]"""
    s = torch.einsum("ahqd,akd->ahqk", q, keys).float() * q.shape[-1] ** -0.5
    s = s.masked_fill(~ok[:, None, None, :], -torch.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse.unsqueeze(-1)).to(torch.bfloat16)
    return torch.einsum("ahqk,akd->aqhd", p, keys), lse.transpose(1, 2).contiguous()


class DSpark(nn.Module):
    def __init__(self, raw):
        super().__init__()
        c = self.c = Cfg(raw)
        n, R = c.num_nextn_predict_layers, c.dspark_markov_rank
        self.stages = nn.ModuleList(Block(c, c.L + i, c.dspark_n_routed_experts, c.dspark_num_experts_per_tok) for i in range(n))
        self.main_proj, self.main_norm = mat(c.D, c.D * len(c.dspark_target_layer_ids)), vec(c.D)
        self.norm = vec(c.D)
        self.m_embed = nn.Parameter(torch.randn(c.vocab_size, R) * 0.5)
        self.m_head = nn.Parameter(torch.randn(c.vocab_size, R) * 0.02)
        self.conf = nn.Parameter(torch.zeros(1, c.D + R))

    def forward(self, embed, head, taps, ids, phase, stride, quant):
        """ids [B,S]; anchors (positions of the known token) at phase, phase + stride, ...; the block behind each is drafted.
        taps [B,S,3D] of the backbone; embed, head: its matrices in bf16.
        -> draft logits [B,A,n,V] (teacher forced Markov), confidence logits [B,A,n], loads"""
        c, W, dev = self.c, Weights(quant), ids.device
        B, S = ids.shape
        n, win, A = c.dspark_block_size, c.W, S // stride
        N = B * A
        flat = taps.flatten(0, 1)
        mx = ops.k_norm(F.linear(ops.k_q8(flat) if quant else flat, W.fp8(self.main_proj)), self.main_norm)
        mxq = ops.k_q8(mx) if quant else mx
        cos, sin = ops.rope_table(c, False, S + n + stride, dev)
        cos_ctx, sin_ctx = cos[:S].repeat(B, 1), sin[:S].repeat(B, 1)
        anchors = (phase + stride * torch.arange(A, device=dev)).expand(B, A)
        pos = anchors.unsqueeze(-1) + torch.arange(n, device=dev)                                     # [B,A,n]
        in_text = (anchors.unsqueeze(-1) - win + torch.arange(win, device=dev)) >= 0                  # rows t-W..t-1
        ok = torch.cat((in_text.view(N, win), torch.ones(N, n, dtype=torch.bool, device=dev)), 1)
        tok = torch.full((B, A, n), c.dspark_noise_token_id, dtype=torch.long, device=dev)
        tok[..., 0] = ids.gather(1, anchors.clamp_max(S - 1))
        h = F.embedding(tok.view(-1), embed).unsqueeze(1).expand(-1, c.hc, -1).contiguous()           # [N*n,hc,D]
        pre = torch.zeros(N * n, c.hc, device=dev)
        pre[:, 0] = 1
        cosq, sinq = cos[pos.view(-1)], sin[pos.view(-1)]
        loads = []
        for b in self.stages:
            a, mode = b.attn, 1 if quant else 0
            ctx = ops.k_kv(F.linear(mxq, W.fp8(a.wkv)), a.kv_norm, cos_ctx, sin_ctx, c.rd, mode).view(B, S, -1)
            pre_attn, post, comb = b.mixes(h, "attn")
            x, xq = ops.k_collapse_norm(h, pre, b.attn_norm, quant)
            _, qrq = ops.k_norm_q(F.linear(xq, W.fp8(a.wq_a)), a.q_norm, quant)
            q = ops.k_rope_heads(F.linear(qrq, W.fp8(a.wq_b)), cosq, sinq, c.H, c.rd, False)
            q = q.view(N, n, c.H, c.hd).transpose(1, 2).contiguous()
            kv = ops.k_kv(F.linear(xq, W.fp8(a.wkv)), a.kv_norm, cosq, sinq, c.rd, mode).view(N, n, -1)
            rows = F.pad(ctx, (0, 0, win, stride))[:, phase:phase + win + stride * (A - 1)].unfold(1, win, stride)
            keys = torch.cat((rows.transpose(2, 3).reshape(N, win, c.hd), kv), 1)
            o, lse = k_block_attn(q, keys, ok)
            y = a.out(o.reshape(N * n, c.H, c.hd), lse.reshape(N * n, c.H), cosq, sinq, W)
            h = ops.k_expand(h, y, post, comb)
            pre_next, post, comb = b.mixes(h, "ffn")
            x, xq = ops.k_collapse_norm(h, pre_attn, b.ffn_norm, quant)
            y, load = b.ffn(x, xq, W)
            loads.append(load)
            h = ops.k_expand(h, y, post, comb)
            pre = pre_next
        v, z = ops.k_collapse_norm_u(h, pre, self.norm)
        m = F.embedding(ids.gather(1, pos.clamp_max(S - 1).view(B, -1)).view(-1), self.m_embed.to(BF))
        logits = F.linear(z, head) + F.linear(m, self.m_head.to(BF))
        conf = (torch.cat((v, m), -1).float() * self.conf.to(BF).float()).sum(-1)
        return logits.view(B, A, n, -1), conf.view(B, A, n), torch.stack(loads)
