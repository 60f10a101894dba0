"""The training model on the micro sizes: gradients, the exported layout, and Tidemill's own numbers for the same weights.
Needs torch; the comparison needs the program, named by the environment variable TIDEMILL."""
import copy
import json
import os
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

import numpy as np

os.environ["TRAIN_COMPILE"] = "0"
try:
    import torch
    from tokenizers import Tokenizer
except ImportError as e:
    raise unittest.SkipTest(f"no {e.name}")

from .. import layout, ops, read_export
from ..check_vectors import experts_in_turn, mix_in_float32
from ..config import MICRO, MINI, Cfg, compressed_token_map, make_config
from ..drafter import DSpark
from ..export import export
from ..model import Backbone, MoE
from ..ops import EngramHash, k_xent
from ..optim import build

ROOT = pathlib.Path(__file__).parents[2]
TOKENIZER = str(ROOT / "models" / "mini" / "tokenizer.json")
S = 256


def rough(model):
    """norms, sinks, biases and heads leave their initial constants, so that a mix-up shows"""
    with torch.no_grad():
        for n, p in model.named_parameters():
            leaf = n.split(".")[-1]
            if "norm" in leaf or leaf in ("e_q", "e_k"):
                p.mul_(1 + 0.2 * torch.randn_like(p))
            elif leaf in ("sink", "conf") or leaf.endswith("scale"):
                p.add_(0.3 * torch.randn_like(p))
        for n, b in model.named_buffers():
            b.add_(0.05 * torch.randn_like(b))


class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(0)
        torch.set_num_threads(2)
        tok = Tokenizer.from_file(TOKENIZER)
        cls.raw = make_config(tok, MICRO)
        cls.c = Cfg(cls.raw)
        cls.net, cls.draft = Backbone(cls.raw), DSpark(cls.raw)
        rough(cls.net), rough(cls.draft)
        cls.hash = EngramHash(cls.c, compressed_token_map(tok)[0])
        cls.ids = torch.randint(3, 8000, (2, S))
        cls.ids[:, 0] = 0
        cls.folder = tempfile.TemporaryDirectory()
        export(cls.net, cls.draft, cls.raw, cls.folder.name, TOKENIZER, temperatures=[1.0] * 5, n_files=2)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def forward(self, net, **kw):
        return net(self.ids, self.hash(self.ids), **kw)

    def test_every_parameter_learns(self):
        net, draft = copy.deepcopy(self.net), copy.deepcopy(self.draft)
        muon, adam = build(net)
        for exact in (False, True):
            z, aux = self.forward(net, quant=exact, sparse=exact, kl_q=torch.arange(0, S, 8), want_taps=True,
                                  seg=torch.zeros(S, dtype=torch.int32) if exact else None)
            loss = k_xent(net.logits(z[:, :-1].flatten(0, 1)), self.ids[:, 1:].flatten(), torch.ones(2 * (S - 1))) + aux["kl"]
            loss.backward()
            for n, p in net.named_parameters():
                self.assertTrue(p.grad is not None and torch.isfinite(p.grad).all(), n)
            muon.step(1e-3), adam.step(), muon.zero_grad(), adam.zero_grad()
        ql, conf, load = draft(net.embed.detach().bfloat16(), net.head.detach().bfloat16(), aux["taps"].detach(), self.ids, 5, 32, True)
        self.assertEqual(tuple(ql.shape), (2, S // 32, 5, self.c.vocab_size))
        (ql.float().logsumexp(-1).mean() + conf.mean()).backward()
        for n, p in draft.named_parameters():
            self.assertTrue(p.grad is not None and torch.isfinite(p.grad).all(), n)

    def test_the_kept_configuration_is_the_one_of_config_py(self):
        kept = json.loads((ROOT / "train" / "config.json").read_text(encoding="utf8"))
        self.assertEqual(kept, make_config(Tokenizer.from_file(TOKENIZER), MINI))

    def test_exported_tensors_are_the_layout(self):
        want = {}
        for name, kind, shape in layout.tensors(self.c):
            values, scales = layout.stored_bytes(kind, shape)
            want[name + (".weight" if scales else "")] = values
            if scales:
                want[name + ".scale"] = scales
        got = {k: len(v[2]) for k, v in read_export.Store(self.folder.name).t.items()}
        self.assertEqual(got, want)

    def test_reading_back_changes_no_logit(self):
        net = Backbone(self.raw)
        read_export.fill(net, None, self.folder.name)
        with torch.no_grad():
            a, b = (self.forward(n, quant=True, sparse=True)[0] for n in (self.net, net))
        self.assertTrue(torch.equal(a, b))

    def tidemill(self, *args):
        program = os.environ.get("TIDEMILL")
        if not program:
            self.skipTest("TIDEMILL does not name the program")
        done = subprocess.run([program, *args, "--model", self.folder.name], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_tidemill_reads_it(self):
        self.assertIn("Engram", self.tidemill("inspect"))

    def test_tidemill_computes_the_same(self):
        """Random weights amplify every rounding, so experts are summed here as deployed. The first positions, which no
        near tie has touched yet, are equal; later ones differ by single flips, and a wrong mechanism is far outside."""
        tokens = pathlib.Path(self.folder.name) / "tokens.json"
        tokens.write_text(json.dumps(self.ids[0].tolist()))
        out = str(pathlib.Path(self.folder.name) / "logits.npy")
        self.tidemill("score", "--tokens", str(tokens), "--logits", out)
        theirs = torch.from_numpy(np.load(out).astype(np.float32))
        with torch.no_grad(), mock.patch.object(MoE, "forward", experts_in_turn), mock.patch.object(ops, "k_mix", mix_in_float32):
            z, _ = self.forward(self.net, quant=True, sparse=True)
        ours = torch.nn.functional.linear(z[0].float(), self.net.head.bfloat16().float())
        error = ((theirs - ours).norm(dim=1) / ours.norm(dim=1)).detach()
        print(f"relative difference of the logits: {[round(float(e), 4) for e in error[:4]]} at first, {float(error.mean()):.3f} on average")
        self.assertLess(float(error[:2].max()), 1e-3)
        self.assertLess(float(error.mean()), 0.45)


    def test_tidemill_drafts_the_same(self):
        """the first draft behind one committed token: its logits and its confidence"""
        ids = self.ids[:1].clone()
        tokens = pathlib.Path(self.folder.name) / "first.json"
        tokens.write_text(json.dumps(ids[0, :1].tolist()))
        theirs = json.loads(self.tidemill("draft", "--tokens", str(tokens), "--anchor", str(int(ids[0, 1]))))
        with torch.no_grad(), mock.patch.object(MoE, "forward", experts_in_turn), mock.patch.object(ops, "k_mix", mix_in_float32):
            _, aux = self.net(ids, self.hash(ids), quant=True, sparse=True, want_taps=True)
            logits, conf, _ = self.draft(self.net.embed.bfloat16(), self.net.head.bfloat16(), aux["taps"], ids, 1, 32, True)
        for top in theirs["top"][0]:
            self.assertAlmostEqual(top["logit"], float(logits[0, 0, 0, top["id"]]), delta=0.03 * abs(top["logit"]) + 0.05)
        self.assertAlmostEqual(theirs["confidence"][0], float(conf[0, 0, 0]), delta=0.03 * abs(theirs["confidence"][0]) + 0.05)


if __name__ == "__main__":
    unittest.main()
