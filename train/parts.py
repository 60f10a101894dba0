"""Files as compressed parts of at most 15 MiB with a list of hashes, and back: for transfers that limit the size of a file.

usage: python3 -m train.parts split OUT FILE ...      python3 -m train.parts join FOLDER OUT
FOLDER may be filled by several transfers; join wants every part of every list in it.
"""
import hashlib
import json
import lzma
import os
import sys
from concurrent.futures import ProcessPoolExecutor

PART = 15 << 20


def split_one(out, path):
    name = os.path.basename(path)
    with open(path, "rb") as f:
        data = f.read()
    packed = lzma.compress(data, preset=6)
    count = -(-len(packed) // PART)
    for i in range(count):
        with open(f"{out}/{name}.{i:03d}", "wb") as f:
            f.write(packed[i * PART:(i + 1) * PART])
    with open(f"{out}/{name}.parts.json", "w", encoding="utf8") as f:
        json.dump(dict(name=name, parts=count, sha256=hashlib.sha256(data).hexdigest()), f)


def join_one(folder, listing, out):
    with open(f"{folder}/{listing}", encoding="utf8") as f:
        info = json.load(f)
    packed = b""
    for i in range(info["parts"]):
        with open(f"{folder}/{info['name']}.{i:03d}", "rb") as f:
            packed += f.read()
    try:
        data = lzma.decompress(packed)
    except lzma.LZMAError:
        data = b""
    if hashlib.sha256(data).hexdigest() != info["sha256"]:
        raise ValueError(f"{info['name']}: the parts do not give the file")
    with open(f"{out}/{info['name']}", "wb") as f:
        f.write(data)


def each(function, out, jobs):
    os.makedirs(out, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        for done in [pool.submit(function, *j) for j in jobs]:
            done.result()


def split(out, files):
    each(split_one, out, [(out, f) for f in files])


def join(folder, out):
    each(join_one, out, [(folder, f, out) for f in sorted(os.listdir(folder)) if f.endswith(".parts.json")])


if __name__ == "__main__":
    if sys.argv[1] == "split":
        split(sys.argv[2], sys.argv[3:])
    else:
        join(sys.argv[2], sys.argv[3])
