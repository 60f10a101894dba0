"""Calibration, parts, plot; the teacher's number formats and what is kept of its answers."""
import json
import os
import pathlib
import tempfile
import unittest

import numpy as np

from .. import calibrate, distill, gguf, parts, plot


class Calibration(unittest.TestCase):
    def test_overconfident_logits_are_softened(self):
        r = np.random.default_rng(0)
        z = r.normal(0.5, 1, (40000, 3))
        accepted = (r.random(z.shape) < calibrate.sigmoid(z / 1.0)).astype(float)
        t = calibrate.fit(z * 2.5, accepted)
        for k in t:
            self.assertAlmostEqual(k, 2.5, delta=0.5)
        for row in calibrate.report(z * 2.5, accepted, t):
            self.assertLess(row["ece"], 0.03)
        self.assertGreater(calibrate.report(z * 2.5, accepted, [1.0] * 3)[0]["ece"], 0.05)

    def test_later_positions_count_only_where_reached(self):
        rows = calibrate.report(np.zeros((4, 2)), np.array([[1, 1], [1, 0], [0, 1], [0, 1]], float), [1, 1])
        self.assertEqual((rows[0]["drafts"], rows[1]["drafts"], rows[1]["accepted"]), (4, 2, 0.5))


class Parts(unittest.TestCase):
    def test_round_trip_and_damage(self):
        with tempfile.TemporaryDirectory() as d:
            data = os.urandom(17 << 20)
            pathlib.Path(d, "a.bin").write_bytes(data)
            parts.split(d + "/p", [d + "/a.bin"])
            self.assertTrue(all(f.stat().st_size <= parts.PART for f in pathlib.Path(d, "p").iterdir()))
            parts.join(d + "/p", d + "/o")
            self.assertEqual(pathlib.Path(d, "o", "a.bin").read_bytes(), data)
            pathlib.Path(d, "p", "a.bin.001").write_bytes(b"x")
            with self.assertRaises(ValueError):
                parts.join(d + "/p", d + "/o")


class Plot(unittest.TestCase):
    def test_log_becomes_svg(self):
        log = [dict(phase="A", tokens=10 ** 6 * i, loss=9 - i) for i in range(1, 4)] + [dict(phase="B", tokens=4 * 10 ** 6, val=dict(edu=3.0))]
        text = plot.svg(log)
        self.assertIn("<polyline", text)
        self.assertIn("held out: edu 3.00", text)


class Teacher(unittest.TestCase):
    def test_gguf_blocks(self):
        header = b"GGUF" + (3).to_bytes(4, "little") + (2).to_bytes(8, "little") + (1).to_bytes(8, "little")
        text = lambda s: len(s).to_bytes(8, "little") + s.encode()
        meta = text("general.architecture") + (8).to_bytes(4, "little") + text("llama")
        info = b""
        for name, kind, offset in (("a", 3, 0), ("b", 8, 32)):
            info += text(name) + (1).to_bytes(4, "little") + (32).to_bytes(8, "little") + kind.to_bytes(4, "little") + offset.to_bytes(8, "little")
        head = header + meta + info
        head += bytes(-len(head) % 32)
        q4 = np.array([0.5, -1], np.float16).tobytes() + bytes((i | (15 - i) << 4) for i in range(16))
        q8 = np.array([0.25], np.float16).tobytes() + np.arange(-16, 16, dtype=np.int8).tobytes()
        with tempfile.TemporaryDirectory() as d:
            pathlib.Path(d, "m.gguf").write_bytes(head + q4.ljust(32, b"\0") + q8)
            g = gguf.Gguf(d + "/m.gguf")
            self.assertEqual(g.meta, {"general.architecture": "llama"})
            self.assertEqual(g.tensor("a").tolist(), [i * 0.5 - 1 for i in range(16)] + [(15 - i) * 0.5 - 1 for i in range(16)])
            self.assertEqual(g.tensor("b").tolist(), [i * 0.25 for i in range(-16, 16)])

    def test_answers_are_cleaned(self):
        self.assertEqual(distill.cleaned("It\u2019s hot. It is very", False), "It's hot.")
        self.assertIsNone(distill.cleaned("I am SmolLM, hello there.", True))
        self.assertIsNone(distill.cleaned("the same words again " * 40, True))

    def test_a_slot_writes_chats_and_texts(self):
        class Tok:
            def encode(self, text, add_special_tokens):
                return type("E", (), dict(ids=list(range(len(text) // 4))))
            def decode(self, ids, skip_special_tokens):
                return "A short answer of the teacher."
        with tempfile.TemporaryDirectory() as d:
            path = pathlib.Path(d, "o.jsonl")
            with path.open("w") as f:
                w = distill.Writer(Tok(), ["volcanoes"], 1, 300, f)
                w.start(0)
                for _ in range(300):
                    w.finish(0, [1, 2], True)
            lines = [json.loads(l) for l in path.read_text().splitlines()]
        self.assertEqual(len(lines), w.kept)
        self.assertTrue(any("text" in l for l in lines))
        self.assertGreater(max(len(l.get("messages", ())) for l in lines), 3)
        for l in lines:
            if "messages" in l:
                self.assertEqual([m["role"] for m in l["messages"]], ["user", "assistant"] * (len(l["messages"]) // 2))


if __name__ == "__main__":
    unittest.main()
