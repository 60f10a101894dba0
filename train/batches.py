"""Random windows of token streams, on the device."""
import os

import numpy as np
import torch

# share of the windows that begin with a document: short ones always. Of long ones few: a quarter of the novels' windows would
# show the first 1,024 tokens of 400 novels dozens of times before the rest is seen three times.
ALIGNED = dict(books=0.02, edu=0.1, docs=0.3, distilled=0.8)


class Stream:
    def __init__(self, path, device):
        t = np.fromfile(path, np.uint16)
        self.n = len(t)
        self.tokens = torch.from_numpy(t.astype(np.int16)).to(device)                    # ids are below 2^15
        self.starts = np.flatnonzero(t == 0)


class Batches:
    def __init__(self, folder, part, device, longest):
        """part: train or val; streams shorter than `longest` + 2 tokens are left out"""
        self.device, self.streams = device, {}
        for f in sorted(os.listdir(folder)):
            name, _, rest = f.partition(".")
            if rest == part + ".bin" and os.path.getsize(f"{folder}/{f}") > 2 * (longest + 2):
                self.streams[name] = Stream(f"{folder}/{f}", device)

    def sizes(self):
        return {k: s.n for k, s in self.streams.items()}

    def windows(self, name, count, S, rng):
        s = self.streams[name]
        last = s.n - S - 1
        at = rng.integers(0, last + 1, count)
        start = s.starts[rng.integers(0, len(s.starts), count)]
        at = np.where((rng.random(count) < ALIGNED.get(name, 1.0)) & (start <= last), start, at)
        index = torch.from_numpy(at).to(self.device)[:, None] + torch.arange(S + 1, device=self.device)
        return s.tokens[index]

    def draw(self, B, S, mix, rng):
        """-> x, y [B,S]; mix: {stream: weight}, streams that are not there are passed over"""
        names = [k for k in mix if k in self.streams]
        p = np.array([mix[k] for k in names], float)
        p /= p.sum()
        counts = np.floor(p * B).astype(int)
        for e in rng.choice(len(names), B - counts.sum(), p=p):
            counts[e] += 1
        x = torch.cat([self.windows(k, c, S, rng) for k, c in zip(names, counts) if c]).long()
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()
