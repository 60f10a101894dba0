"""Trains the backbone. Phase A: dense compressed attention, bf16. Phase B: true top-k lists, candidate pool, fake quantisation,
bounded replay in some steps, some sequences of 4,096 tokens.

usage: python3 -m train.train BINS WORK [--a SEC] [--b SEC] [--stop-after SEC] [...]      (or torchrun --nproc-per-node N -m ...)
A phase is bounded by its wall-clock seconds and the learning rate follows the elapsed share of them. A command ends by itself
after --stop-after seconds; the next one goes on from WORK/backbone.pt. WORK/log.jsonl is appended to.
"""
import argparse
import json
import os
import time

import numpy as np
import torch
from tokenizers import Tokenizer

from .batches import Batches
from .config import compressed_token_map
from .data.prepare import TOKENIZER
from .model import Backbone
from .ops import EngramHash, k_xent
from .optim import build
from .runtime import Clock, Log, Ranks, load, save

torch.set_float32_matmul_precision("high")

MIX_A = dict(books=0.17, edu=0.19, docs=0.20, talk=0.06, words=0.03, synth=0.08, recall=0.03, distilled=0.24)
MIX_B = dict(books=0.14, edu=0.20, docs=0.16, talk=0.06, words=0.03, synth=0.13, recall=0.04, distilled=0.24)
MIX_LONG = dict(books=0.15, edu=0.20, docs=0.10, recall=0.45, distilled=0.10)


def parser(**kw):
    ap = argparse.ArgumentParser(**kw)
    ap.add_argument("bins"), ap.add_argument("work")
    ap.add_argument("--config", default=os.path.join(os.path.dirname(__file__), "config.json"))
    ap.add_argument("--tokenizer", default=TOKENIZER)
    ap.add_argument("--a", type=float, default=600), ap.add_argument("--b", type=float, default=300)
    ap.add_argument("--stop-after", type=float, default=1e9)
    ap.add_argument("--tokens", type=int, default=131072, help="per step and GPU")
    ap.add_argument("--lengths", type=int, nargs=3, default=[1024, 2048, 4096], help="phase A, phase B, long steps of phase B")
    ap.add_argument("--long", type=float, default=0.15, help="share of the long steps")
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--weight-decay", type=float, default=0.3, help="of the matrices")
    ap.add_argument("--eval-every", type=float, default=60, help="seconds between held-out losses; their time does not count")
    ap.add_argument("--warm", action="store_true", help="compile everything with two steps of each kind, keep nothing")
    ap.add_argument("--profile", action="store_true")
    return ap


class Trainer:
    def __init__(self, args):
        self.args, self.ranks = args, Ranks()
        self.dev = self.ranks.device
        os.makedirs(args.work, exist_ok=True)
        self.log = Log(f"{args.work}/log.jsonl", self.ranks)
        with open(args.config, encoding="utf8") as f:
            self.raw = json.load(f)
        torch.manual_seed(20261129)
        self.net = Backbone(self.raw).to(self.dev)
        self.c = self.net.c
        self.net.dropout = args.dropout
        table, n = compressed_token_map(Tokenizer.from_file(args.tokenizer))
        assert n == self.c.engram_compressed_vocab_size, "config.json belongs to another tokenizer"
        self.hash = EngramHash(self.c, table, self.dev)
        self.muon, self.adam = build(self.net, args.weight_decay)
        self.parameters = list(self.net.parameters())
        longest = max(args.lengths)
        self.data, self.held = (Batches(args.bins, part, self.dev, longest) for part in ("train", "val"))
        self.path = f"{args.work}/backbone.pt"
        self.progress = dict(phase="A", spent=0.0, step=0, tokens=0)
        state = None if args.warm else load(self.path, self.dev)
        if state:
            self.restore(state)
        self.rng = np.random.default_rng([self.progress["tokens"], self.ranks.rank])
        self.stop_at = time.time() + args.stop_after
        self.check_every = 10 if self.dev.type == "cuda" else 1              # the clock must not run ahead of the device
        self.log(msg="backbone", parameters=sum(p.numel() for p in self.parameters), device=str(self.dev), world=self.ranks.world,
                 train=self.data.sizes(), val=self.held.sizes(), resumed=self.progress)

    def restore(self, state):
        self.net.load_state_dict(state["net"])
        self.progress = state["progress"]
        if "muon" in state:
            self.muon.load(state["muon"]), self.adam.load_state_dict(state["adam"])

    def snapshot(self):
        return dict(net=self.net.state_dict(), muon=self.muon.state(), adam=self.adam.state_dict(), progress=dict(self.progress))

    def save(self):
        if self.ranks.rank == 0 and not self.args.warm:
            save(self.path, self.snapshot())

    def sample_queries(self, S):
        return torch.from_numpy(np.sort(self.rng.choice(S, min(64, S), replace=False))).to(self.dev)

    def replay_rows(self, S, share):
        """first window row that a decoder query sees: now and then the prompt is taken to end inside the text, and what lay
        before its last window was never seen by the decoder"""
        seg = torch.zeros(S, dtype=torch.int32, device=self.dev)
        if self.rng.random() < share:
            q = torch.arange(S, device=self.dev)
            for cut in np.sort(self.rng.integers(1, S, 2)):
                seg = torch.where(q >= int(cut), int(cut), seg.long()).to(torch.int32)
        return seg

    def loss(self, x, y, exact, seg=None, queries=None):
        z, aux = self.net(x, self.hash(x), quant=exact, sparse=exact, seg=seg, kl_q=queries)
        weight = (y != 0).float()                                            # BOS is never predicted
        return k_xent(self.net.logits(z).flatten(0, 1), y.flatten(), weight.flatten()), aux

    def validate(self, S, exact, batches):
        """held-out loss per stream; with gradients on, so that nothing is compiled again"""
        out, rng = {}, np.random.default_rng(7)
        self.net.dropout = 0.0
        for name in self.held.streams:
            total = 0.0
            for _ in range(batches):
                x, y = self.held.draw(self.args.tokens // S, S, {name: 1.0}, rng)
                seg = torch.zeros(S, dtype=torch.int32, device=self.dev) if exact else None
                total += float(self.loss(x, y, exact, seg, self.sample_queries(S))[0].detach())
            out[name] = total / batches
        self.net.dropout = self.args.dropout
        return out

    def step(self, S, mix, exact, lr, replay, queries=True):
        x, y = self.data.draw(self.args.tokens // S, S, mix, self.rng)
        seg = self.replay_rows(S, replay) if exact else None
        ce, aux = self.loss(x, y, exact, seg, self.sample_queries(S) if queries else None)
        (ce + aux["kl"]).backward()
        for p in self.parameters:                                            # the indexers rest in some steps
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        self.ranks.mean_gradients(self.parameters)
        for g in self.adam.param_groups:
            g["lr"] = lr * g["factor"]
        torch.nn.utils.clip_grad_norm_([p for g in self.adam.param_groups for p in g["params"]], 1.0, foreach=True)
        self.muon.step(lr), self.adam.step()
        self.muon.zero_grad(), self.adam.zero_grad(set_to_none=True)
        load = self.ranks.sum(aux["load"])
        with torch.no_grad():                                                # balance without a loss: move the selection bias
            rate = 2e-3 * min(1.0, lr / self.args.lr)
            for b, l in zip(self.net.layers, load):
                b.ffn.bias += rate * torch.sign(l.mean() - l)
        return ce.detach(), torch.as_tensor(aux["kl"], device=self.dev).detach(), load

    def run(self, phase, seconds, lr_of, pick, replay, exact):
        """pick(step) -> (length, mix, indexer loss)"""
        p, log_every = self.progress, 50
        clock = Clock(seconds, p["spent"], self.stop_at)
        sums, seen, since, last_save = torch.zeros(2, device=self.dev), 0, time.time(), time.time()
        load_sum, first, good = 0, set(), None
        elapsed, stop = self.ranks.agree(clock.elapsed()), False
        next_eval = elapsed + self.args.eval_every
        while elapsed < seconds and not stop:
            lr = lr_of(min(1.0, elapsed / seconds), p["step"])
            S, mix, queries = pick(p["step"])
            begin = time.time()
            ce, kl, load = self.step(S, mix, exact, lr, replay, queries)
            if (S, queries) not in first:                                    # compiled: charge the phase one usual step
                self.synchronize()
                first.add((S, queries))
                clock.pause(max(0.0, time.time() - begin - 0.5))
            sums += torch.stack((ce, kl))
            load_sum = load_sum + load
            p["step"] += 1
            p["tokens"] += self.args.tokens * self.ranks.world
            seen += 1
            if p["step"] % self.check_every == 0:
                self.synchronize()
                elapsed, stop = self.ranks.agree(clock.elapsed()), self.ranks.agree(float(clock.out_of_time())) > 0
            if elapsed >= next_eval and not self.args.warm:              # over-fitting must be seen while it can be stopped
                begin = time.time()
                self.log(phase=phase, step=p["step"], tokens=p["tokens"], val=self.validate(S, exact, 1))
                clock.pause(time.time() - begin)
                next_eval = elapsed + self.args.eval_every
            if p["step"] % log_every == 0:
                mean = (self.ranks.sum(sums.clone()) / self.ranks.world / seen).tolist()
                skew = load_sum.max(-1).values / load_sum.mean(-1)
                now = time.time()
                self.log(phase=phase, step=p["step"], tokens=p["tokens"], loss=mean[0], kl=mean[1], lr=lr, skew=float(skew.max()),
                         tok_s=round(seen * self.args.tokens * self.ranks.world / (now - since)), elapsed=elapsed)
                if np.isfinite(mean[0]):
                    if p["step"] % (4 * log_every) == 0 or good is None:
                        good = {k: v.clone() for k, v in self.net.state_dict().items()}
                else:                                                        # keeps an unattended run alive
                    self.log(msg="not finite: back to the last good state", step=p["step"])
                    self.recover(good)
                sums.zero_()
                seen, load_sum, since = 0, 0, now
                if now - last_save > 60:
                    p["spent"], last_save = clock.elapsed(), now
                    self.save()
            if self.args.warm and p["step"] >= 6:
                break
        self.synchronize()
        p["spent"] = clock.elapsed()
        self.save()
        return elapsed >= seconds

    def recover(self, good):
        if good is not None:
            self.net.load_state_dict(good)
        for m in self.muon.buf.values():
            m.zero_()
        self.adam.state.clear()

    def synchronize(self):
        if self.dev.type == "cuda":
            torch.cuda.synchronize()

    def phase_a(self):
        S = self.args.lengths[0]
        return self.run("A", self.args.a, lambda s, i: self.args.lr * min(1.0, (i + 1) / 150) * (1 - 0.3 * s),
                        lambda i: (S, MIX_A, i % 2 == 0), 0.0, False)

    def phase_b(self):
        _, S, long = self.args.lengths
        every = max(2, round(1 / self.args.long)) if self.args.long > 0 else 0
        pick = lambda i: (long, MIX_LONG, True) if every and i % every == every - 1 else (S, MIX_B, True)
        if self.args.warm:
            pick = lambda i: (long, MIX_LONG, True) if i % 2 else (S, MIX_B, True)
        return self.run("B", self.args.b, lambda s, i: self.args.lr * 0.7 * max(0.02, 1 - s), pick, 0.12, True)

    def main(self):
        if self.args.warm:
            for phase in (self.phase_a, self.phase_b):
                self.progress.update(step=0, spent=0.0)
                phase()
            self.log(msg="warm")
            return
        p = self.progress
        if p["phase"] == "A" and self.phase_a():
            self.log(phase="A", step=p["step"], tokens=p["tokens"], val=self.validate(self.args.lengths[0], False, 2))
            p.update(phase="B", spent=0.0, step=0)
            self.save()
        if p["phase"] == "B" and self.phase_b():
            self.log(phase="B", step=p["step"], tokens=p["tokens"], val=self.validate(self.args.lengths[1], True, 2))
            p.update(phase="done", spent=0.0)
            self.save()
        self.log(msg="end of command", **p)


def main():
    t = Trainer(parser().parse_args())
    if t.args.profile:
        t.args.warm = True
        t.main()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
            for exact, S, mix in ((False, t.args.lengths[0], MIX_A), (True, t.args.lengths[1], MIX_B)):
                t.step(S, mix, exact, 1e-4, 0.0)
            t.synchronize()
        print(prof.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=70))
    else:
        t.main()
    t.ranks.close()


if __name__ == "__main__":
    main()
