"""Text -> token streams: OUT/NAME.train.bin and OUT/NAME.val.bin, uint16, documents from BOS to EOS.

usage: python3 -m train.data.prepare OUT [--tokenizer FILE] [--corpus DIR] [--synthetic N] [--recall N] [--distilled FILE ...]
Streams: books, edu, docs, talk, words (from the corpus), synth (N chats), recall (N chats of 1,000 to 4,000 tokens, filled
with passages of the training part of edu and docs: needs the corpus), distilled (JSON lines of distill.py). With a corpus also
topics.txt for distill.py, held_prompts.jsonl and recall_eval.jsonl for evaluate.py. Prints one JSON line per stream.
"""
import argparse
import hashlib
import json
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from . import chat_format, sources, synth, synth_tasks

TOKENIZER = os.path.join(os.path.dirname(__file__), "..", "..", "models", "mini", "tokenizer.json")
PIECE = 8000                                             # characters; one call on a whole novel is very slow


def pieces(text):
    """cuts behind blank lines, so that no token crosses a cut that would not be one anyway"""
    at = 0
    while len(text) - at > PIECE:
        end = text.find("\n\n", at + PIECE)
        if end < 0:
            break
        yield text[at:end + 2]
        at = end + 2
    yield text[at:]


def plain_document(text):
    return [(chat_format.BOS, True), *((p, False) for p in pieces(text)), (chat_format.EOS, True)]


def corpus_document(section, document):
    messages = sources.turns(document)
    if messages is None:
        return plain_document(document)
    if section.source.startswith("self-dialogue"):
        return plain_document(sources.transcript(messages))
    return chat_format.encode(messages, thinking=False, header=False)


def passages(corpus, held_only=False):
    """paragraphs of training documents (or of held-out ones) to fill long chats with"""
    out = []
    for use in (sources.EDU, sources.DOCS):
        for _, d, held in sources.documents(corpus, use):
            if held == held_only and d[:1] != "\x02":
                out += [p for p in d.split("\n\n") if 150 < len(p) < 900 and not chat_format.spells_special(p)]
    return out


def held_chat(d):
    return sources.held_out(json.dumps(d, sort_keys=True, ensure_ascii=False))


def fresh_chats(n, seed):
    r = random.Random(seed)
    makers, weights = zip(*(synth.GENERATORS + synth_tasks.GENERATORS))
    for _ in range(n):
        yield r.choices(makers, weights)[0](r)


def synthetic(n, seed):
    for d in fresh_chats(n, seed):
        yield chat_format.encode(header=False, **d), held_chat(d)


def long_recall(n, corpus, seed):
    r, texts = random.Random(seed), passages(corpus)
    for _ in range(n):
        d = synth.recall_long(r, texts, int(r.triangular(1500, 14000, 12000)))
        yield chat_format.encode(header=False, **d), held_chat(d)


def distilled(paths):
    for path in paths:
        with open(path, encoding="utf8") as f:
            for line in f:
                d = json.loads(line)
                if "messages" in d:
                    yield chat_format.encode(d["messages"], thinking=False, header=False), held_chat(d)
                else:
                    yield plain_document(d["text"]), sources.held_out(d["text"])


def write_stream(name, documents, tokenizer, out):
    """documents: (segments, held out)"""
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(tokenizer)
    special = {t: tok.token_to_id(t) for t in (chat_format.BOS, chat_format.EOS, chat_format.SYSTEM, chat_format.USER,
                                               chat_format.ASSISTANT, chat_format.THINK, chat_format.END_THINK, chat_format.DSML)}
    streams, count, skipped = dict(train=[], val=[]), 0, 0

    def flush(batch):
        texts = [t for segments, _ in batch for t, is_special in segments if not is_special]
        ids = iter(tok.encode_batch_fast(texts, add_special_tokens=False))
        for segments, held in batch:
            o = []
            for t, is_special in segments:
                if is_special:
                    o.append(special[t])
                else:
                    o += next(ids).ids
            streams["val" if held else "train"].append(np.array(o, np.uint16))

    batch = []
    for segments, held in documents:
        if any(not s and chat_format.spells_special(t) for t, s in segments):
            skipped += 1
            continue
        batch.append((segments, held))
        count += 1
        if len(batch) == 4096:
            flush(batch)
            batch = []
    flush(batch)
    sizes = {}
    for part, docs in streams.items():
        if name != "books":                              # documents of one kind should not lie together
            order = np.random.default_rng(1).permutation(len(docs))
            docs = [docs[i] for i in order] if part == "train" else docs
        data = np.concatenate(docs) if docs else np.zeros(0, np.uint16)
        data.tofile(f"{out}/{name}.{part}.bin")
        sizes[part] = dict(documents=len(docs), tokens=len(data), sha256=hashlib.sha256(data.tobytes()).hexdigest()[:16])
    return dict(stream=name, documents=count, skipped=skipped, **sizes)


def write_companions(corpus, out):
    """topics.txt for distill.py; held_prompts.jsonl and recall_eval.jsonl for evaluate.py"""
    r = random.Random(77)
    topics, prompts = set(), []
    for use in (sources.EDU, sources.DOCS):
        for s, d, held in sources.documents(corpus, use):
            title = d.split("\n", 1)[0].strip()
            if not held and s.source.startswith("OpenStax") and 4 < len(title) < 60 and title.isascii() and not title.startswith(("Introduction", "Chapter", "Key ", "Review")):
                topics.add(title)
    for use in (sources.TALK, sources.WORDS):
        asks = [sources.turns(d)[0]["content"] for s, d, held in sources.documents(corpus, use) if held and not s.source.startswith("self")]
        prompts += [dict(text=t) for t in r.sample(asks, min(40, len(asks)))]
    for use in (sources.EDU, sources.DOCS, sources.BOOKS):
        texts = [d[:300].rsplit(" ", 1)[0] for _, d, held in sources.documents(corpus, use) if held and d[:1] != "\x02"]
        prompts += [dict(text=t, raw=True) for t in r.sample(texts, min(10, len(texts)))]
    for d, held in ((d, held_chat(d)) for d in fresh_chats(6000, 3)):
        if held and len(d["messages"]) == 2 and d["messages"][0]["role"] == "user" and not d.get("tools") and not d["thinking"] and not d.get("response_format"):
            prompts.append(dict(text=d["messages"][0]["content"]))
    r.shuffle(prompts)
    cases, texts = [], passages(corpus, held_only=True)
    for length in (256, 1024, 2048, 4096):
        for _ in range(16):
            cases.append(dict(length=length, messages=synth.recall_long(r, texts, int((length - 60) * 3.6))["messages"]))
    for name, lines in (("held_prompts", prompts), ("recall_eval", cases)):
        with open(f"{out}/{name}.jsonl", "w", encoding="utf8") as f:
            f.writelines(json.dumps(l, ensure_ascii=False) + "\n" for l in lines)
    with open(f"{out}/topics.txt", "w", encoding="utf8") as f:
        f.writelines(t + "\n" for t in sorted(topics))
    return dict(topics=len(topics), held_prompts=len(prompts), recall_cases=len(cases))


def job(args, name):
    if name == "synth":
        docs = synthetic(args.synthetic, 1)
    elif name == "recall":
        docs = long_recall(args.recall, args.corpus, 2)
    elif name == "distilled":
        docs = distilled(args.distilled)
    else:
        docs = ((corpus_document(s, d), held) for s, d, held in sources.documents(args.corpus, name))
    return write_stream(name, docs, args.tokenizer, args.out)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out")
    ap.add_argument("--tokenizer", default=TOKENIZER)
    ap.add_argument("--corpus", default="")
    ap.add_argument("--synthetic", type=int, default=0)
    ap.add_argument("--recall", type=int, default=0)
    ap.add_argument("--distilled", nargs="*", default=[])
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    names = [sources.BOOKS, sources.EDU, sources.DOCS, sources.TALK, sources.WORDS] if args.corpus else []
    names += ["synth"] * (args.synthetic > 0) + ["recall"] * (args.recall > 0) + ["distilled"] * bool(args.distilled)
    if not names or (args.recall and not args.corpus):
        sys.exit("nothing to do: --corpus, --synthetic or --distilled; --recall needs --corpus")
    with ProcessPoolExecutor(max_workers=min(len(names), os.cpu_count() or 1)) as pool:
        for done in [pool.submit(job, args, n) for n in names]:
            print(json.dumps(done.result()), flush=True)
    if args.corpus:
        print(json.dumps(write_companions(args.corpus, args.out)), flush=True)


if __name__ == "__main__":
    main()
