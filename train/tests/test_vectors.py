"""The golden vectors of the bundled model against the training model's forward pass."""
import os
import unittest

os.environ["TRAIN_COMPILE"] = "0"
try:
    import tokenizers  # noqa: F401
    import torch
except ImportError as e:
    raise unittest.SkipTest(f"no {e.name}")

from .. import check_vectors
from ..check_vectors import ROOT, Independent


class Vectors(unittest.TestCase):
    def test_two_programs_agree(self):
        torch.set_num_threads(2)
        net = Independent(ROOT / "models" / "mini")
        self.assertEqual(check_vectors.check(net, ROOT / "tests" / "vectors" / "mini", ("p1", "p5", "p129", "chat_recall")), [])


if __name__ == "__main__":
    unittest.main()
