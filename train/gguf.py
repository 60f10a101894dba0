"""Reads a GGUF file: metadata and tensors (F32, F16, Q8_0, Q4_0, Q4_1) as float32 numpy arrays."""
import struct

import numpy as np

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
# type: values per block, bytes per block
BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34)}


class Gguf:
    def __init__(self, path):
        self.data = np.memmap(path, np.uint8, "r")
        self.at = 0
        if bytes(self.data[:4]) != b"GGUF":
            raise ValueError(f"{path} is no GGUF file")
        self.at = 8
        n_tensors, n_keys = self.read("<Q"), self.read("<Q")
        self.meta = {self.text(): self.value(self.read("<I")) for _ in range(n_keys)}
        self.infos = {}
        for _ in range(n_tensors):
            name = self.text()
            shape = tuple(self.read("<Q") for _ in range(self.read("<I")))[::-1]
            self.infos[name] = shape, self.read("<I"), self.read("<Q")
        align = self.meta.get("general.alignment", 32)
        self.start = -(-self.at // align) * align

    def read(self, form):
        n = struct.calcsize(form)
        v = struct.unpack(form, self.data[self.at:self.at + n].tobytes())[0]
        self.at += n
        return v

    def text(self):
        n = self.read("<Q")
        self.at += n
        return self.data[self.at - n:self.at].tobytes().decode("utf8")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner = self.read("<I")
            return [self.value(inner) for _ in range(self.read("<Q"))]
        return self.read(SCALARS[kind])

    def tensor(self, name):
        shape, kind, offset = self.infos[name]
        if kind not in BLOCKS:
            raise ValueError(f"{name}: tensor type {kind} is not supported")
        per, size = BLOCKS[kind]
        n = int(np.prod(shape))
        a = self.start + offset
        raw = np.array(self.data[a:a + n // per * size])
        if kind < 2:
            return raw.view((np.float32, np.float16)[kind]).astype(np.float32).reshape(shape)
        b = raw.reshape(-1, size)
        scale = b[:, :2].copy().view(np.float16).astype(np.float32)
        if kind == 8:
            v = b[:, 2:].view(np.int8) * scale
        else:
            codes = b[:, 2:] if kind == 2 else b[:, 4:]
            q = np.concatenate((codes & 15, codes >> 4), 1).astype(np.float32)
            v = (q - 8) * scale if kind == 2 else q * scale + b[:, 2:4].copy().view(np.float16).astype(np.float32)
        return v.astype(np.float32).reshape(shape)


def tokenizer(meta):
    """a tokenizers.Tokenizer from the metadata of a byte-level BPE with single digits"""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    if meta["tokenizer.ggml.model"] != "gpt2" or meta.get("tokenizer.ggml.pre") not in ("smollm", "smaug-bpe", "default"):
        raise ValueError(f"tokenizer {meta['tokenizer.ggml.model']}/{meta.get('tokenizer.ggml.pre')} is not supported")
    words = meta["tokenizer.ggml.tokens"]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(words)}, [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(words, meta["tokenizer.ggml.token_type"]) if kind == 3]
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tok
