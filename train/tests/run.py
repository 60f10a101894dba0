"""All tests of train/, for ctest: exits with 77 where the requirements are not installed. usage: python3 train/tests/run.py"""
import importlib.util
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    missing = [m for m in ("numpy", "tokenizers", "torch") if importlib.util.find_spec(m) is None]
    if missing:
        print("skipped: no " + ", ".join(missing) + " (train/requirements.txt)")
        sys.exit(77)
    sys.path[0] = str(ROOT)
    os.environ["TRAIN_COMPILE"] = "0"
    suite = unittest.defaultTestLoader.discover(str(ROOT / "train" / "tests"), top_level_dir=str(ROOT))
    sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
