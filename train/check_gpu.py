"""First minute on a new GPU: the Sinkhorn kernels against autograd, flex_attention against masked products (values and
gradients). Exits with 1 if one differs. usage: python3 -m train.check_gpu [CONFIG]"""
import json
import os
import sys
import time

import torch

from . import attention, sinkhorn
from .config import Cfg


def relative(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-12))


def check_sinkhorn(dev):
    c = (torch.randn(5000, 4, 4, device=dev) * 2).requires_grad_()
    w = torch.randn_like(c)
    results = []
    for f in (sinkhorn.sinkhorn_plain, sinkhorn.sinkhorn):
        y = f(c, 20, 1e-6)
        (y * w).sum().backward()
        results.append((y.detach(), c.grad))
        c.grad = None
    return [relative(a, b) for a, b in zip(results[1], results[0])]


def check_attention(c, ratio, sparse, dev, S=512, B=2):
    att = attention.Attend(c, S, dev)
    n = S + (S // ratio if ratio else 0)
    q = torch.randn(B, c.H, S, c.hd, device=dev, dtype=torch.bfloat16).requires_grad_()
    kv = torch.randn(B, n, c.hd, device=dev, dtype=torch.bfloat16).requires_grad_()
    sel = seg = None
    if sparse:
        sel = (torch.rand(B, S, S // ratio, device=dev) < 0.2) & att.vis[ratio]
        seg = torch.where(torch.arange(S, device=dev) >= 300, 300, 0).to(torch.int32)
    g, results = torch.randn_like(q), []
    for flex in (True, False):
        attention.FLEX = flex
        o, lse = att(q, kv, ratio, sel, seg)
        ((o * g).sum().float() + torch.sigmoid(lse).sum()).backward()
        results.append((o.detach(), lse.detach(), q.grad, kv.grad))
        q.grad = kv.grad = None
    attention.FLEX = True
    return [relative(a, b) for a, b in zip(*results)]


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "config.json")
    with open(path, encoding="utf8") as f:
        c = Cfg(json.load(f))
    torch.manual_seed(0)
    print(torch.__version__, torch.cuda.get_device_name())
    worst = max(check_sinkhorn("cuda"))
    print(f"sinkhorn: {worst:.1e}", flush=True)
    for ratio, sparse in ((0, False), (2, False), (1, False), (2, True), (1, True)):
        begin = time.time()
        errors = check_attention(c, ratio, sparse, "cuda")
        worst = max(worst, *errors)
        print(f"attention, ratio {ratio}{', lists' * sparse}: " + " ".join(f"{e:.1e}" for e in errors) + f", {time.time() - begin:.0f} s", flush=True)
    sys.exit(worst > 0.03)


if __name__ == "__main__":
    main()
