"""Golden vectors of the bundled model against this folder's own forward pass, which shares no code with src/.

usage: python3 -m train.check_vectors [--write] [--model DIR] [--vectors DIR]

1. Without roundings (`no-rounding.npz`, made here by --write) the sums differ in their order only, so Tidemill's tests ask for 1e-3.
2. With the roundings of the deployed model, single bf16 ulps flip FP8 and FP4 codes, then experts and entries. How far that takes
   two right programs apart depends on the weights, so it is measured: a second run here, which adds the experts up in another
   order, against the first. The recorded vectors may lie so far away and half as far again.
Exits with 1 when a bound is broken.
"""
import argparse
import contextlib
import json
import os
import pathlib
import sys
from unittest import mock

os.environ.setdefault("TRAIN_COMPILE", "0")
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from . import drafter, model, ops, read_export
from .config import Cfg, compressed_token_map

ROOT = pathlib.Path(__file__).parents[1]
PROMPTS = ("p1", "p5", "p129", "chat_recall", "p1100")
EXACT = ("p5", "p129", "p300")                                       # in no-rounding.npz
DRAFT_AT = 290                                                       # anchor of its drafts, in p300


def experts_in_turn(self, x, xq, W):
    """one expert after the other, each result rounded, as deployed"""
    r, load = ops.k_route(x, self.gate, self.bias, self.K, self.factor)
    mm = lambda a, w: (a.float() @ w.float()).to(torch.bfloat16)
    w1, w3, w2 = W.fp4(self.w1, -1), W.fp4(self.w3, -1), W.fp4(self.w2t, -2)
    y = torch.zeros(x.shape)
    for e in range(self.E):
        y += mm(ops.k_swiglu(mm(xq, w1[e].t()), mm(xq, w3[e].t()), r[:, e:e + 1], W.quant), w2[e]).float()
    b = ops.k_swiglu(mm(xq, W.fp8(self.s1).t()), mm(xq, W.fp8(self.s3).t()), None, W.quant)
    return (y + mm(b, W.fp8(self.s2).t()).float()).to(torch.bfloat16), load


def mix_in_float32(h, fn, scale, base):
    """training rounds `fn` to bf16, the deployed model does not"""
    x = h.flatten(-2).float()
    m = F.linear(x, fn) * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-20)
    pre, post = torch.sigmoid(m[..., :4] * scale[0] + base[:4]) + 1e-6, 2 * torch.sigmoid(m[..., 4:8] * scale[1] + base[4:8])
    return pre, post, (m[..., 8:] * scale[2] + base[8:]).unflatten(-1, (4, 4))


def first(scores, count):
    """mask of the largest; among equals the first ones. Training keeps all that tie with the last."""
    order = torch.sort(scores.float(), dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)


def select(scores, vis, topk, pool=None):
    ok = (vis if pool is None else vis & pool).expand_as(scores)
    return first(scores.masked_fill(~ok, -torch.inf), topk) & ok


def candidate_pool(scores, vis, nblocks, bsize):
    s = scores.masked_fill(~vis, -torch.inf).float()
    b = s.unflatten(-1, (s.shape[-1] // bsize, bsize)).amax(-1)
    last = (vis.sum(-1) - 1).div(bsize, rounding_mode="floor")
    b = torch.where(torch.arange(b.shape[-1]) == last[:, None], torch.inf, b)
    return (first(b, nblocks) & (b > -torch.inf)).repeat_interleave(bsize, -1)


class Independent:
    def __init__(self, folder):
        raw = json.loads((folder / "config.json").read_text(encoding="utf8"))
        self.c = Cfg(raw)
        self.net, self.draft = model.Backbone(raw), drafter.DSpark(raw)
        read_export.fill(self.net, self.draft, folder)
        self.rows = ops.EngramHash(self.c, compressed_token_map(Tokenizer.from_file(str(folder / "tokenizer.json")))[0])

    def padded(self, ids):
        """to whole pool blocks of pairs; nothing looks ahead, so what stands there does not matter"""
        unit = 2 * self.c.candidate_block_size
        out = torch.full((1, -(-len(ids) // unit) * unit), 7, dtype=torch.long)
        out[0, :len(ids)] = torch.tensor(ids)
        return out

    @torch.no_grad()
    def __call__(self, ids, rounding=True, in_turn=True, drafts=None):
        """-> dict: logits, hidden, experts, sel, engram; with drafts = (phase, stride) the drafter's logits and confidences behind
        the anchors phase, phase + stride, ..."""
        n, t, seen = len(ids), self.padded(ids), dict(hidden=[], experts=[], sel=[])

        def watch(name, function, keep):
            def watched(*args, **more):
                out = function(*args, **more)
                seen[name].append(keep(out))
                return out
            return watched

        with contextlib.ExitStack() as stack:
            patch = lambda *a: stack.enter_context(mock.patch.object(*a))
            if not rounding:                                         # float32 is the only format there is
                patch(torch, "bfloat16", torch.float32), patch(model, "BF", torch.float32), patch(drafter, "BF", torch.float32)
            if in_turn:
                patch(model.MoE, "forward", experts_in_turn)
            patch(ops, "k_mix", mix_in_float32)
            patch(model, "candidate_pool", candidate_pool)
            with contextlib.ExitStack() as watching:
                see = lambda *a: watching.enter_context(mock.patch.object(*a))
                see(model, "select", watch("sel", select, lambda m: m[0, :n]))
                see(ops, "k_expand", watch("hidden", ops.k_expand, lambda h: h[:n].float()))
                see(ops, "k_route", watch("experts", ops.k_route, lambda r: r[0][:n] > 0))
                z, aux = self.net(t, self.rows(t), quant=rounding, sparse=True, want_taps=drafts is not None)
            kept = lambda w: w.detach().to(torch.bfloat16).float()
            out = dict(logits=F.linear(z[0, :n].float(), kept(self.net.head)), hidden=torch.stack(seen["hidden"][1::2]),
                       experts=torch.stack(seen["experts"]), sel=seen["sel"], engram=self.rows(t)[:, 0, :n])
            if drafts:
                logits, conf, _ = self.draft(self.net.embed.to(torch.bfloat16), self.net.head.to(torch.bfloat16), aux["taps"], t, *drafts, rounding)
                out.update(draft_logits=logits[0].float(), conf=conf[0].float())
        return out


def write_exact(net, folder):
    path = folder / "no-rounding.npz"
    old, new = dict(np.load(path)), {}
    for name in EXACT:
        ids = old[name + ".ids"]
        out = net(ids, rounding=False, drafts=(DRAFT_AT - 256, 32) if name == "p300" else None)
        pos = np.unique(np.r_[0, len(ids) // 4, len(ids) // 2, len(ids) - 1]).astype(np.int32)
        new.update({name + ".ids": ids.astype(np.int32), name + ".pos": pos, name + ".logits": out["logits"][pos].numpy()})
        if name == "p300":
            new.update({name + ".draft_at": np.array([DRAFT_AT], np.int32), name + ".draft_logits": out["draft_logits"][8].numpy(),
                        name + ".draft_conf": out["conf"][8].numpy()})
    np.savez_compressed(path, **new)
    print(f"{path}: {path.stat().st_size} bytes")


def recorded(v):
    """a prompt's file in the shape of Independent's answer; sel and hidden at their positions only"""
    experts = np.zeros((*v["expert_ids"].shape[:2], int(v["expert_ids"].max()) + 1), bool)
    np.put_along_axis(experts, v["expert_ids"], True, -1)
    layers = sorted((k for k in v if k.endswith(".sel")), key=lambda k: int(k[1:-4]))
    return dict(logits=torch.from_numpy(v["logits"]), best=torch.from_numpy(v["top8_ids"][:, 0]), experts=torch.from_numpy(experts),
                hidden=torch.from_numpy((v["hidden"].astype(np.uint32) << 16).view(np.float32)), sel=[set_rows(v[k]) for k in layers])


def set_rows(rows):
    return [set(r[r >= 0].tolist()) for r in rows]


def at_positions(out, v):
    n, pos, hp = len(v["ids"]), v["pos"], v["hidden_pos"]
    return dict(logits=out["logits"][pos], best=out["logits"][:n].argmax(-1), experts=out["experts"][:, :n], hidden=out["hidden"][:, hp].flatten(2),
                sel=[set_rows([torch.nonzero(r).flatten() for r in m[pos]]) for m in out["sel"]])


def relative(a, b):
    return float((a - b).norm() / a.norm())


def distance(a, b):
    """figures of which every one grows with the difference"""
    pa, pb = torch.log_softmax(a["logits"], -1), torch.log_softmax(b["logits"], -1)
    E = max(a["experts"].shape[-1], b["experts"].shape[-1])
    wide = lambda e: F.pad(e, (0, E - e.shape[-1]))
    pairs = [(x, y) for p, q in zip(a["sel"], b["sel"]) for x, y in zip(p, q)]
    size = sum(len(x) for x, _ in pairs)
    return dict(logit=float((a["logits"] - b["logits"]).abs().mean()), kl=float((pa.exp() * (pa - pb)).sum(-1).mean()),
                argmax=float((a["best"] != b["best"]).float().mean()), stream=relative(a["hidden"], b["hidden"]),
                experts=float((wide(a["experts"]) != wide(b["experts"])).any(-1).float().mean()),
                entries=1 - sum(len(x & y) for x, y in pairs) / size if size else 0.0)


# allowed on top: a few flips of a short prompt, a few steps
FLOOR = dict(first=0.002, logit=0.05, kl=0.005, argmax=0.03, stream=0.02, experts=0.03, entries=0.02, greedy=0.1, draft=0.3, confidence=0.1)


def compare(net, v):
    """-> figures of the prompt and of its continuation; each a pair of how far the recording and how far a second run here is"""
    n, whole, steps = len(v["ids"]), v["ids"].tolist() + v["greedy"].tolist(), len(v["greedy"])
    one, other = (net(whole, in_turn=t, drafts=(n % 4, 4) if n < 300 else None) for t in (True, False))
    if not np.array_equal(one["engram"][:, :n].numpy(), v["engram_rows"]):
        raise ValueError("other Engram rows")
    a = at_positions(one, v)
    prompt = distance(a, recorded(v)), distance(a, at_positions(other, v))
    if n < net.c.W:                                                  # nothing has flipped yet
        prompt[0]["first"], prompt[1]["first"] = relative(a["hidden"][0], recorded(v)["hidden"][0]), 0.0

    after = slice(n - 1, n - 1 + steps)                              # token by token, where the text is the recorded one
    next_ = lambda o: o["logits"][after].argmax(-1)
    unequal = lambda x, y: float((x != y).float().mean())
    ours, alone = {}, {}
    ours["greedy"], alone["greedy"] = unequal(next_(one), torch.from_numpy(v["greedy"])), unequal(next_(one), next_(other))
    if "conf" in one:                                                # first drafts of every fourth step
        anchors = slice(n // 4, n // 4 + -(-steps // 4))
        guess, sure = lambda o: o["draft_logits"][anchors, 0].argmax(-1), lambda o: o["conf"][anchors, 0]
        drafts, conf = torch.from_numpy(v["drafts"][::4, 0]), torch.from_numpy(v["conf"][::4, 0])
        ours["draft"], alone["draft"] = unequal(guess(one), drafts), unequal(guess(one), guess(other))
        ours["confidence"], alone["confidence"] = float((sure(one) - conf).abs().mean()), float((sure(one) - sure(other)).abs().mean())
    return prompt, (ours, alone)


def judge(name, ours, alone):
    """prints both -> faults"""
    line = lambda d: "  ".join(f"{k} {x:.4f}" for k, x in d.items())
    print(f"{name}\n  recorded    {line(ours)}\n  second run  {line(alone)}", flush=True)
    return [f"{name}: {k} differs by {ours[k]:.4f}, two runs here by {alone[k]:.4f}" for k in ours if not ours[k] <= 1.5 * alone[k] + FLOOR[k]]


def check(net, vectors, prompts=PROMPTS):
    """-> faults. What comes of few steps is judged over all prompts together."""
    faults, continued = [], []
    for name in prompts:
        prompt, continuation = compare(net, dict(np.load(vectors / f"{name}.npz")))
        faults += judge(name, *prompt)
        continued.append(continuation)
    mean = lambda i: {k: float(np.mean([c[i][k] for c in continued if k in c[i]])) for k in ("greedy", "draft", "confidence")}
    return faults + judge("continuations", mean(0), mean(1))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--write", action="store_true")
    ap.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "mini")
    ap.add_argument("--vectors", type=pathlib.Path, default=ROOT / "tests" / "vectors" / "mini")
    args = ap.parse_args()
    net = Independent(args.model)
    if args.write:
        write_exact(net, args.vectors)
    faults = check(net, args.vectors)
    print("\n".join(faults) or "OK")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
