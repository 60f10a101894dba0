"""Bytes of a configuration on disk, from the exact released layout. usage: python3 -m train.sizes CONFIG [--json]"""
import json
import sys

from .config import Cfg
from .layout import stored_bytes, tensors

GROUPS = (("mtp.", "markov_head", "drafter: Markov head"), ("mtp.", "experts.", "drafter: routed experts"),
          ("mtp.", "", "drafter: rest"), ("", "engram.embed", "Engram tables"), ("", "engram.", "Engram projections"),
          ("", "shared_experts", "shared experts"), ("", "experts.", "routed experts"), ("", "gate", "routers"),
          ("", "hc_", "hyper-connections"), ("", "compressor", "compressors"), ("", "indexer", "indexers"),
          ("", "attn.", "attention"), ("embed", "", "embedding"), ("head", "", "head"), ("", "", "norms"))


def group_of(name):
    return next(label for start, part, label in GROUPS if name.startswith(start) and part in name)


def table(c):
    """-> {group: (parameters, bytes)}, header bytes of the files and of the index, about"""
    rows, header = {}, 0
    for name, kind, shape in tensors(c):
        values, scales = stored_bytes(kind, shape)
        n = 1
        for s in shape:
            n *= s
        p, b = rows.get(group_of(name), (0, 0))
        rows[group_of(name)] = (p + n, b + values + scales)
        header += (2 if scales else 1) * (2 * len(name) + 140)
    return rows, header


def active(c):
    """parameters that one token of the backbone multiplies with (the embedding is a lookup)"""
    rows, _ = table(c)
    skip = {"embedding", "Engram tables"} | {g for g in rows if g.startswith("drafter")}
    total = sum(p for g, (p, _) in rows.items() if g not in skip)
    return total - round(rows["routed experts"][0] * (1 - c.num_experts_per_tok / c.n_routed_experts))


def main():
    c = Cfg(json.load(open(sys.argv[1], encoding="utf8")))
    rows, header = table(c)
    total = sum(b for _, b in rows.values())
    if "--json" in sys.argv:
        print(json.dumps(dict(rows=rows, payload=total, headers=header, active=active(c))))
        return
    for g, (p, b) in sorted(rows.items(), key=lambda r: -r[1][1]):
        print(f"| {g} | {p:,} | {b:,} | {100 * b / total:.1f} % |")
    print(f"payload {total:,} B, headers and index about {header:,} B; {sum(p for p, _ in rows.values()):,} parameters, "
          f"{active(c):,} used per token")


if __name__ == "__main__":
    main()
