"""A random checkpoint in the released layout, for engines that only load files.

usage (from the repository's root): python3 bench/peers/make_checkpoint.py FOLDER [CONFIG]
CONFIG defaults to bench/peers/medium.json: 8 layers of width 1,024, about 92 MB of weights read per token, as much as a 4-bit
model of 135 M parameters. Needs numpy. Values have the sizes that keep activations near 1.
"""
import json
import os
import shutil
import struct
import sys

import numpy as np

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, ROOT)
from train.config import Cfg  # noqa: E402
from train.layout import tensors  # noqa: E402

TYPES = dict(f32="F32", bf16="BF16", codes="F8_E4M3", packed="I8", scales="F8_E8M0")


def stored(c, rng):
    """-> (name, dtype, shape, bytes) of every tensor of the files"""
    def codes(n):
        return (rng.integers(0, 256, n, np.uint8) & 0xBF).tobytes()                    # below 2, no NaN

    for name, kind, shape in tensors(c):
        n = int(np.prod(shape))
        if kind == "f32":
            yield name, "F32", shape, rng.normal(0, 0.05, n).astype("<f4").tobytes()
        elif kind == "bf16":
            center = 1.0 if len(shape) == 1 else 0.0
            values = (center + rng.normal(0, 0.05, n)).astype("<f4")
            yield name, "BF16", shape, (values.view("<u4") >> 16).astype("<u2").tobytes()
        elif kind == "fp4":
            yield name + ".weight", "I8", (shape[0], shape[1] // 2), codes(n // 2)
            yield name + ".scale", "F8_E8M0", (shape[0], shape[1] // 32), bytes([120]) * (n // 32)
        else:
            rows = shape[0] if kind == "rows8" else -(-shape[0] // 32)
            yield name + ".weight", "F8_E4M3", shape, codes(n)
            yield name + ".scale", "F8_E8M0", (rows, -(-shape[1] // 32)), bytes([121]) * (rows * -(-shape[1] // 32))


def main():
    folder = sys.argv[1]
    path = sys.argv[2] if len(sys.argv) > 2 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "medium.json")
    with open(path, encoding="utf8") as f:
        raw = json.load(f)
    os.makedirs(folder, exist_ok=True)
    head, at, data = {}, 0, os.path.join(folder, "data.part")
    with open(data, "wb") as out:
        for name, dtype, shape, payload in stored(Cfg(raw), np.random.default_rng(1)):
            head[name] = dict(dtype=dtype, shape=list(shape), data_offsets=[at, at + len(payload)])
            at += len(payload)
            out.write(payload)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file = "model-00001-of-00001.safetensors"
    with open(os.path.join(folder, file), "wb") as out, open(data, "rb") as part:
        out.write(struct.pack("<Q", len(text)) + text)
        shutil.copyfileobj(part, out)
    os.remove(data)
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf8") as f:
        json.dump(dict(metadata=dict(total_size=at), weight_map={k: file for k in head}), f)
    mini = os.path.join(ROOT, "models", "mini")
    for name in ("tokenizer.json", "tokenizer_config.json", "engram_token_map.i32", "generation_config.json"):
        shutil.copyfile(os.path.join(mini, name), os.path.join(folder, name))
    shutil.copyfile(path, os.path.join(folder, "config.json"))
    print(f"{at / 1e6:.0f} MB in {folder}")


if __name__ == "__main__":
    main()
