"""Synthetic chats, held-out splits and the size table."""
import json
import pathlib
import random
import unittest

from .. import sizes
from ..config import Cfg
from ..data import chat_format, sources, synth, synth_tasks

TRAIN = pathlib.Path(__file__).parents[1]


class Synthetic(unittest.TestCase):
    def documents(self, n=300):
        for make, _ in synth.GENERATORS + synth_tasks.GENERATORS:
            r = random.Random(5)
            for _ in range(n):
                yield make.__name__, make(r)

    def test_every_chat_encodes_and_ends_with_an_answer(self):
        for name, d in self.documents():
            out = chat_format.encode(header=False, **d)
            self.assertEqual(out[-1], (chat_format.EOS, True), name)
            for text, special in out:
                self.assertTrue(special or not chat_format.spells_special(text), (name, text))

    def test_users_and_assistants_take_turns(self):
        for name, d in self.documents(50):
            roles = [m["role"] for m in d["messages"] if m["role"] not in ("system", "tool")]
            self.assertNotIn(("user", "user"), list(zip(roles, roles[1:])), name)

    def test_seeds_repeat(self):
        for make, _ in synth.GENERATORS + synth_tasks.GENERATORS:
            self.assertEqual(make(random.Random(9)), make(random.Random(9)))

    def test_tool_calls_name_offered_tools(self):
        for name, d in self.documents():
            offered = {t["function"]["name"] for t in d.get("tools") or ()}
            for m in d["messages"]:
                for c in m.get("tool_calls") or ():
                    self.assertIn(c["function"]["name"], offered)
                    json.loads(c["function"]["arguments"])

    def test_json_answers_are_json(self):
        r = random.Random(1)
        for _ in range(300):
            json.loads(synth_tasks.json_answer(r)["messages"][-1]["content"])

    def test_long_recall_has_the_length_and_asks_only_what_was_told(self):
        r = random.Random(2)
        for size in (500, 4000, 12000):
            for _ in range(20):
                d = synth.recall_long(r, ["A paragraph of text. " * 9], size)
                before = "".join(m["content"] for m in d["messages"][:-1])
                self.assertGreaterEqual(len(before), size)
                last = d["messages"][-1]["content"].rstrip(".").split(" ")[-1]
                self.assertIn(last, before)


class Sources(unittest.TestCase):
    def test_hash_splits_once(self):
        docs = [f"document {i}" for i in range(40000)]
        held = [d for d in docs if sources.held_out(d)]
        self.assertAlmostEqual(len(held) / len(docs), 0.005, delta=0.0015)
        self.assertEqual(held, [d for d in docs if sources.held_out(d)])

    def test_no_share_alike_text_is_used(self):
        for s in sources.SECTIONS:
            self.assertTrue(s.use == sources.DROP or not any(x in s.licence for x in ("BY-SA", "GFDL")), s)

    def test_turns(self):
        self.assertEqual(sources.turns("\x02q\x03a"), [dict(role="user", content="q"), dict(role="assistant", content="a")])
        self.assertIsNone(sources.turns("text"))


class Sizes(unittest.TestCase):
    def test_the_model_fits_34_megabytes(self):
        c = Cfg(json.loads((TRAIN / "config.json").read_text(encoding="utf8")))
        rows, headers = sizes.table(c)
        companions = 261_032 + 4 * c.vocab_size + 10_000                 # tokenizer, token map, small JSON files
        self.assertLessEqual(sum(b for _, b in rows.values()) + headers + companions, 34_000_000)

    def test_every_mechanism_is_there(self):
        c = Cfg(json.loads((TRAIN / "config.json").read_text(encoding="utf8")))
        back = c.ratio[:c.L]
        self.assertEqual(set(back), {0, 1, 2})
        self.assertEqual((len(c.engram_layer_ids), c.num_nextn_predict_layers), (2, 3))
        reindex = [l for l in c.index_source_layer_ids if l not in c.kv_source_layer_ids]
        self.assertTrue(reindex and min(reindex) > c.candidate_source_layer_id)
        self.assertGreater(c.candidate_topk_blocks * c.candidate_block_size, c.index_topk)       # the pool bites, then the list
        self.assertEqual(c.L - 1, max(c.dspark_target_layer_ids))


if __name__ == "__main__":
    unittest.main()
