"""Attention over window rows and compressed entries, and the indexers that choose the entries.

flex_attention on a GPU, masked products on a CPU; both give the same values (check_gpu.py, tests).
"""
import copy
import os

import torch

from .ops import COMPILE, comp

FLEX = os.environ.get("TRAIN_FLEX", "1") == "1" and torch.cuda.is_available()
if FLEX:
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
    _flex = torch.compile(flex_attention, dynamic=False) if COMPILE else flex_attention


def window_ok(q, k, W):
    return (k <= q) & (q - k < W)


class Attend:
    """Attention of every query over [window rows | compressed entries] with one shared key/value head."""

    def __init__(self, cfg, S, device):
        self.cfg, self.S, self.device = cfg, S, device
        self.bm = {}
        q = torch.arange(S, device=device)
        self.vis = {r: (torch.arange(S // r, device=device)[None, :] < ((q + 1) // r)[:, None]) for r in (1, 2)}
        self.win = window_ok(q[:, None], q[None, :], cfg.W)

    def block_mask(self, ratio, sparse):
        key = (ratio, sparse)
        if key not in self.bm:
            S, W = self.S, self.cfg.W

            def allowed(b, h, q, k):
                w = (k <= q) & (q - k < W)
                if ratio == 0:
                    return w
                return torch.where(k < S, w, (k - S) < torch.div(q + 1, ratio, rounding_mode="floor"))
            n = S + (S // ratio if ratio else 0)
            self.bm[key] = create_block_mask(allowed, None, None, S, n, device=self.device)
            if sparse and ratio:                                      # no block may skip the (data dependent) mask
                m = self.bm[key]
                dense = m.to_dense().bool()[0, 0]
                cnt = dense.sum(-1).to(torch.int32)[None, None].contiguous()
                ind = torch.argsort(dense.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)[None, None].contiguous()
                self.bm[key] = BlockMask.from_kv_blocks(cnt, ind, None, None, BLOCK_SIZE=m.BLOCK_SIZE, mask_mod=allowed, seq_lengths=(S, n))
        return self.bm[key]

    def __call__(self, q, kv, ratio, sel=None, seg=None):
        """q [B,H,S,d], kv [B,S+N,d] -> o [B,H,S,d] and log-sum-exp [B,H,S] (without the sink).
        sel: bool [B,S,N] or None (all visible); seg: int [S], first window row that the query may see, or None"""
        S, W, scale = self.S, self.cfg.W, self.cfg.hd ** -0.5
        if FLEX and q.is_cuda:
            bm = self.block_mask(ratio, sel is not None)
            if ratio and (sel is not None or seg is not None):
                r, sg = ratio, seg if seg is not None else torch.zeros(S, dtype=torch.int32, device=q.device)
                if sel is not None:
                    def mod(b, h, i, k):
                        w = (k <= i) & (i - k < W) & (k >= sg[i])
                        return torch.where(k < S, w, sel[b, i, torch.clamp(k - S, min=0)])
                else:
                    def mod(b, h, i, k):
                        w = (k <= i) & (i - k < W) & (k >= sg[i])
                        return torch.where(k < S, w, (k - S) < torch.div(i + 1, r, rounding_mode="floor"))
                bm = copy.copy(bm)
                bm.mask_mod = mod
            k = kv.unsqueeze(1)
            return _flex(q, k, k, block_mask=bm, scale=scale, enable_gqa=True, return_lse=True)
        ok = self.win if seg is None else self.win & (torch.arange(S, device=q.device)[None, :] >= seg[:, None])
        ok = ok.unsqueeze(0).expand(q.shape[0], -1, -1)
        if ratio:
            c = sel if sel is not None else self.vis[ratio].unsqueeze(0).expand(q.shape[0], -1, -1)
            ok = torch.cat((ok, c), -1)
        s = torch.einsum("bhqd,bkd->bhqk", q.float(), kv.float()) * scale
        s = s.masked_fill(~ok.unsqueeze(1), -torch.inf)
        lse = torch.logsumexp(s, -1)
        top = s.amax(-1, keepdim=True)
        p = torch.exp(s - top)                                       # rounded against the maximum, as deployed
        o = torch.einsum("bhqk,bkd->bhqd", p.to(torch.bfloat16).float(), kv.float())
        return o * torch.exp(top - lse.unsqueeze(-1)), lse


@comp
def k_index_scores(d, w):
    """d [B,h,S,N] raw dots (bf16), w [B,S,h] -> [B,S,N] bf16 scores"""
    t = torch.relu(d) * w.transpose(1, 2).unsqueeze(-1)
    return t.float().sum(1).to(torch.bfloat16)


@comp
def k_index_kl(qs, ks, ws, target, vis):
    """KL(target || softmax of the index scores) on sampled queries. qs [B,h,Q,e] ks [B,N,e] ws [B,Q,h]"""
    d = torch.einsum("bhqe,bne->bhqn", qs, ks).float()
    s = (torch.relu(d) * ws.transpose(1, 2).unsqueeze(-1).float()).sum(1)
    lp = torch.log_softmax(s.masked_fill(~vis, -1e9), -1)
    kl = target * (torch.log(target.clamp_min(1e-9)) - lp)
    return kl.masked_fill(~vis, 0.0).sum(-1).mean()


@comp
def k_index_target(q, kc, lse, vis):
    """summed head probabilities on compressed entries of the sampled queries (unnormalised)"""
    s = torch.einsum("bhqd,bnd->bhqn", q, kc).float() * q.shape[-1] ** -0.5
    s = s.masked_fill(~vis, -torch.inf)
    z = torch.logaddexp(lse.float(), torch.logsumexp(s, -1))
    return torch.exp(s - z.unsqueeze(-1)).sum(1)


@torch.no_grad()
def select(scores, vis, topk, pool=None):
    """bool mask of the top-k visible entries per query (entries tied with the k-th are kept)"""
    ok = vis if pool is None else vis & pool
    s = scores.masked_fill(~ok, -torch.inf)
    if s.shape[-1] <= topk:
        return ok.expand_as(s)
    kth = s.topk(topk, -1, sorted=True).values[..., -1:]
    return (s >= kth) & ok


@torch.no_grad()
def candidate_pool(scores, vis, nblocks, bsize):
    s = scores.masked_fill(~vis, -torch.inf)
    S, N = s.shape[-2:]
    b = s.unflatten(-1, (N // bsize, bsize)).amax(-1)
    n = vis.sum(-1)                                               # visible entries per query
    last = (n - 1).div(bsize, rounding_mode="floor")
    b = torch.where(torch.arange(b.shape[-1], device=s.device) == last[:, None], torch.inf, b.float())
    if b.shape[-1] > nblocks:
        kth = b.topk(nblocks, -1).values[..., -1:]
        keep = (b >= kth) & (b > -torch.inf)
    else:
        keep = b > -torch.inf
    return keep.repeat_interleave(bsize, -1)
