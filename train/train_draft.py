"""Phase C: the DSpark drafter on the frozen backbone of WORK/backbone.pt. Phase D: its confidence temperatures on held-out text.
Then the checkpoint, WORK/checkpoint.

usage: python3 -m train.train_draft BINS WORK [--c SEC] [--stop-after SEC] [...]
Bounded and restartable as train.py is (WORK/drafter.pt). An export with the drafter of the moment is written whenever the
command ends, so a chain that breaks off still leaves a checkpoint.
"""
import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F

from . import calibrate
from .drafter import DSpark
from .export import export
from .ops import comp
from .optim import build
from .runtime import Clock, load, save
from .train import MIX_B, Trainer, parser


@comp
def k_draft_loss(ql, pl, conf, label, ok, w):
    """ql, pl [N,n,V] draft and target logits, conf [N,n], label [N,n], ok bool [N,n], w [n] -> loss, then figures"""
    q, p = torch.log_softmax(ql.float(), -1), torch.softmax(pl.float(), -1)
    tv = (q.exp() - p).abs().sum(-1)
    ce = -q.gather(-1, label.unsqueeze(-1)).squeeze(-1)
    c = (1 - 0.5 * tv.detach()).clamp(0, 1)
    bce = F.binary_cross_entropy_with_logits(conf, c, reduction="none")
    ww = ok.float() * w
    d = ww.sum() + 1e-6
    best = pl.argmax(-1)
    hit = (ql.argmax(-1) == best).float()
    greedy = (label == best).float()                                         # the text goes on as the target would
    return ((0.1 * ce + 0.9 * tv + bce) * ww).sum() / d, c, hit, greedy


class DraftTrainer:
    def __init__(self, args):
        self.args, self.base = args, Trainer(args)
        t = self.base
        t.net.dropout = 0.0                                                  # it is frozen
        if t.progress["phase"] != "done":
            t.log(msg="the backbone has not finished its phases", **t.progress)
        self.ranks, self.log, self.dev, self.c = t.ranks, t.log, t.dev, t.c
        self.path = f"{args.work}/drafter.pt"
        torch.manual_seed(7)
        self.draft = DSpark(t.raw).to(self.dev)
        self.parameters = list(self.draft.parameters())
        self.muon, self.adam = build(self.draft)
        self.progress = dict(spent=0.0, step=0, anchors=0, finished=False)
        state = None if args.warm else load(self.path, self.dev)
        if state:
            self.draft.load_state_dict(state["draft"])
            self.muon.load(state["muon"]), self.adam.load_state_dict(state["adam"])
            self.progress = state["progress"]
        self.rng = np.random.default_rng([5, self.progress["step"], self.ranks.rank])
        self.embed, self.head = (w.detach().to(torch.bfloat16) for w in (t.net.embed, t.net.head))
        self.log(msg="drafter", parameters=sum(p.numel() for p in self.parameters), resumed=self.progress)

    def save(self):
        if self.ranks.rank == 0 and not self.args.warm:
            save(self.path, dict(draft=self.draft.state_dict(), muon=self.muon.state(), adam=self.adam.state_dict(), progress=dict(self.progress)))

    def forward(self, data, mix, rng):
        """-> k_draft_loss's outputs, ok [N,n], confidence logits [N,n], loads"""
        t, S, n, stride = self.base, self.args.lengths[1], self.c.dspark_block_size, self.args.stride
        x, _ = data.draw(self.args.tokens // S, S, mix, rng)
        seg = torch.zeros(S, dtype=torch.int32, device=self.dev)
        z, aux = t.net(x, t.hash(x), quant=True, sparse=True, seg=seg, kl_q=t.sample_queries(S), want_taps=True)
        z, taps = z.detach(), aux["taps"].detach()
        del aux
        B, A = x.shape[0], S // stride
        phase = int(rng.integers(1, stride + 1))
        slot = (phase + stride * torch.arange(A, device=self.dev)).expand(B, A).unsqueeze(-1) + torch.arange(n, device=self.dev)
        label = x.gather(1, (slot + 1).clamp_max(S - 1).view(B, -1)).view(B * A, n)
        ok = ((label != 0) & (slot.view(B * A, n) + 1 < S)).long().cumprod(-1).bool()      # up to the end of the document
        ql, conf, load = self.draft(self.embed, self.head, taps, x, phase, stride, True)
        rows = z.gather(1, slot.clamp_max(S - 1).view(B, -1, 1).expand(-1, -1, self.c.D))
        pl = F.linear(rows, self.head).view(B * A, n, -1)
        conf = conf.view(B * A, n)
        weight = torch.exp(-torch.arange(n, device=self.dev).float() / n)
        return k_draft_loss(ql.view(B * A, n, -1), pl, conf, label, ok, weight), ok, conf, load

    def step(self, lr):
        (loss, overlap, hit, _), ok, conf, load = self.forward(self.base.data, MIX_B, self.rng)
        loss.backward()
        self.ranks.mean_gradients(self.parameters)
        for g in self.adam.param_groups:
            g["lr"] = lr * g["factor"]
        torch.nn.utils.clip_grad_norm_([p for g in self.adam.param_groups for p in g["params"]], 1.0, foreach=True)
        self.muon.step(lr), self.adam.step()
        self.muon.zero_grad(), self.adam.zero_grad(set_to_none=True)
        load = self.ranks.sum(load)
        with torch.no_grad():
            for b, l in zip(self.draft.stages, load):
                b.ffn.bias += 1e-3 * torch.sign(l.mean() - l)
            share = lambda v: (v * ok).sum(0) / ok.sum(0).clamp_min(1)
            figures = torch.stack((share(overlap), share(hit), share(hit.cumprod(-1)), share(torch.sigmoid(conf.detach()))))
        return loss.detach(), figures

    def run(self):
        p, args = self.progress, self.args
        clock = Clock(args.c, p["spent"], self.base.stop_at)
        elapsed, stop, last_save = p["spent"], False, time.time()
        warm_up = True
        while elapsed < args.c and not stop:
            share, begin = elapsed / args.c, time.time()
            lr = args.lr * 0.8 * min(1.0, (p["step"] + 1) / 100) * max(0.02, min(1.0, 2 * (1 - share)))
            loss, figures = self.step(lr)
            if warm_up:
                self.base.synchronize()
                clock.pause(max(0.0, time.time() - begin - 0.5))
                warm_up = False
            p["step"] += 1
            p["anchors"] += args.tokens // args.stride * self.ranks.world
            if p["step"] % self.base.check_every == 0:
                self.base.synchronize()
                elapsed, stop = self.ranks.agree(clock.elapsed()), self.ranks.agree(float(clock.out_of_time())) > 0
            if p["step"] % 50 == 0:
                names = ("overlap", "hit", "chain", "confidence")
                self.log(phase="C", step=p["step"], anchors=p["anchors"], loss=float(loss), lr=lr, elapsed=elapsed,
                         **dict(zip(names, figures.tolist())))
            if time.time() - last_save > 60:
                p["spent"], last_save = elapsed, time.time()
                self.save()
            if args.warm and p["step"] >= 3:
                return
        p["spent"], p["finished"] = elapsed, elapsed >= args.c
        self.save()

    @torch.no_grad()
    def outcomes(self, data, seed):
        """confidence logits and acceptance [N,n] where the text follows the target's own greedy path as far as it matters"""
        zs, hits, rng = [], [], np.random.default_rng(seed)
        for _ in range(self.args.calibration_batches):
            with torch.enable_grad():                                        # the functions compiled for training
                (_, _, hit, greedy), ok, conf, _ = self.forward(data, MIX_B, rng)
            before = torch.cat((torch.ones_like(greedy[:, :1]), greedy[:, :-1]), 1).cumprod(1)
            keep = (ok.float() * before).bool().all(1)
            zs.append(conf.detach()[keep].float().cpu().numpy()), hits.append(hit[keep].cpu().numpy())
        return np.concatenate(zs), np.concatenate(hits)

    def finish(self):
        temperatures = None
        if self.args.calibration_batches:
            z, accepted = self.outcomes(self.base.held, 9)
            if len(z) >= 100:
                half = len(z) // 2
                temperatures = [round(t, 4) for t in calibrate.fit(z[:half], accepted[:half])]
                self.log(phase="D", anchors=len(z), temperatures=temperatures, before=calibrate.report(z[half:], accepted[half:], [1.0] * z.shape[1]),
                         after=calibrate.report(z[half:], accepted[half:], temperatures))
        if self.ranks.rank == 0:
            total = export(self.base.net, self.draft, self.base.raw, f"{self.args.work}/checkpoint", self.args.tokenizer, temperatures)
            self.log(msg="exported", bytes=total, finished=self.progress["finished"])


def main():
    ap = parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--c", type=float, default=150)
    ap.add_argument("--stride", type=int, default=16, help="one anchor in so many tokens")
    ap.add_argument("--calibration-batches", type=int, default=8)
    t = DraftTrainer(ap.parse_args())
    t.run()
    if not t.args.warm:
        t.finish()
    t.ranks.close()


if __name__ == "__main__":
    main()
