"""The card's figures, all computed by the program `tidemill` (named by TIDEMILL, else found on the PATH).

usage: python3 -m train.evaluate CHECKPOINT OUT.json [--text heldout.txt] [--baseline CHECKPOINT] [--bins DIR] [--prompts N]
--text: windows split by a line =====, special tokens spelled out. --bins: the folder of prepare.py, for held_prompts.jsonl and
recall_eval.jsonl. Everything is greedy but the answers to card_prompts.json: temperature of the checkpoint, seed 1, first draw.
"""
import argparse
import json
import math
import os
import subprocess
import tempfile

import numpy as np

from . import calibrate
from .data import chat_format

PROGRAM = os.environ.get("TIDEMILL", "tidemill")
WINDOWS = ["edu"] * 4 + ["docs"] * 2 + ["books"] * 2 + ["chat"] * 2


def tidemill(command, checkpoint, *args, stdin=None):
    done = subprocess.run([PROGRAM, command, "--model", checkpoint, *args], input=stdin, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"tidemill {command}: {done.stderr.strip()}")
    return done.stdout


def json_lines(text):
    return [json.loads(l) for l in text.splitlines() if l.strip()]


class Checkpoint:
    def __init__(self, folder):
        from tokenizers import Tokenizer
        self.folder, self.tok = folder, Tokenizer.from_file(folder + "/tokenizer.json")
        with open(folder + "/generation_config.json", encoding="utf8") as f:
            self.temperatures = json.load(f).get("dspark_confidence_temperatures")

    def score(self, sequences):
        lines = "".join(json.dumps(dict(tokens=s)) + "\n" for s in sequences)
        return json_lines(tidemill("score", self.folder, "--tokens", "-", stdin=lines))


def bits_per_byte(ck, path):
    """every window on its own, every token but the first; the bytes are the text's as it is spelled"""
    with open(path, encoding="utf8") as f:
        windows = f.read().split("\n=====\n")
    scores = ck.score([ck.tok.encode(t, add_special_tokens=False).ids for t in windows])
    sums = {}
    for name, text, s in zip(WINDOWS, windows, scores, strict=True):
        for k in (name, "all"):
            bits, size, nll, n = sums.get(k, (0, 0, 0, 0))
            total = s["nll"] * s["scored"]
            sums[k] = bits + total / math.log(2), size + len(text.encode()), nll + total, n + s["scored"]
    return {k: dict(bits_per_byte=b / n, perplexity=math.exp(nll / t), tokens=t) for k, (b, n, nll, t) in sums.items()}


def greedy(ck, prompt, tokens):
    args = ["--temperature", "0", "--draft", "5", "--json", "--max-tokens", str(tokens)] + (["--raw"] if prompt.get("raw") else [])
    return json.loads(tidemill("run", ck.folder, *args, "--", prompt["text"]))


def prompt_ids(ck, prompt):
    if prompt.get("raw"):
        return [0] + ck.tok.encode(prompt["text"], add_special_tokens=False).ids
    return chat_format.token_ids(chat_format.encode([dict(role="user", content=prompt["text"])], thinking=False), ck.tok)


def acceptance(ck, prompts, tokens=48):
    """real decoding for tokens per step; drafts behind every token of the same answers for the calibration"""
    steps, accepted, lines, targets = 0, np.zeros(5), [], []
    for p in prompts:
        out = greedy(ck, p, tokens)
        steps += out["drafts"]["steps"]
        accepted += out["drafts"]["accepted"]
        begin, ids = prompt_ids(ck, p), out["ids"]
        for i in range(len(ids) - 6):
            lines.append(dict(tokens=begin + ids[:i]))
            targets.append(ids[i:i + 6])
    drafts = json_lines(tidemill("draft", ck.folder, "--tokens", "-", stdin="".join(json.dumps(l) + "\n" for l in lines)))
    z, hits = [], []
    for d, t in zip(drafts, targets, strict=True):
        if d["anchor"] == t[0]:
            z.append(d["confidence"]), hits.append([float(a == b) for a, b in zip(d["drafts"], t[1:])])
    z, hits = np.array(z), np.array(hits)
    temperatures = ck.temperatures or [1.0] * z.shape[1]
    return dict(prompts=len(prompts), steps=int(steps), tokens_per_step=float(1 + accepted.sum() / max(steps, 1)),
                expected_tokens_per_step=float(1 + np.cumprod(hits, 1).sum(1).mean()), temperatures=temperatures,
                positions=calibrate.report(z, hits, temperatures), uncalibrated=calibrate.report(z, hits, [1.0] * z.shape[1]),
                best_temperatures=calibrate.fit(z, hits))


def recall(ck, cases):
    """the share of answers that greedy decoding gives exactly, by prompt length: every token must be the likeliest"""
    groups = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            messages = case["messages"]
            begin = chat_format.token_ids(chat_format.encode(messages[:-1], thinking=False), ck.tok)
            ids = begin + ck.tok.encode(messages[-1]["content"], add_special_tokens=False).ids + [1]
            path = folder + "/tokens.json"
            with open(path, "w", encoding="utf8") as f:
                json.dump(ids, f)
            tidemill("score", ck.folder, "--tokens", path, "--logits", folder + "/logits.npy")
            best = np.load(folder + "/logits.npy", mmap_mode="r")[-(len(ids) - len(begin)) - 1:-1].argmax(-1)
            right = best.tolist() == ids[len(begin):]
            g = groups.setdefault(case["length"], dict(cases=0, right=0, prompt_tokens=0))
            g["cases"], g["right"], g["prompt_tokens"] = g["cases"] + 1, g["right"] + right, g["prompt_tokens"] + len(begin)
    for g in groups.values():
        g["prompt_tokens"] = round(g["prompt_tokens"] / g["cases"])
    return groups


def card_answers(ck):
    with open(os.path.join(os.path.dirname(__file__), "card_prompts.json"), encoding="utf8") as f:
        prompts = json.load(f)
    out = []
    for p in prompts:
        args = ["--seed", "1", "--json", "--max-tokens", "160"]
        args += ["--system", p["system"]] if "system" in p else []
        args += ["--thinking"] if p.get("thinking") else ["--no-thinking"]
        args += ["--json-object"] if p.get("json") else []
        raw = p.get("raw_tools")
        if raw:                                              # a prompt with tools, spelled out: `run` has no flag for them
            segments = chat_format.encode([dict(role="user", content=p["text"])], thinking=False, tools=raw)
            ids = chat_format.token_ids(segments, ck.tok)
            out.append(dict(p, answer=greedy_from(ck, ids, 80)))
            continue
        done = json.loads(tidemill("run", ck.folder, *args, "--", p["text"]))
        out.append(dict(p, answer=done["text"], reasoning=done.get("reasoning", "")))
    return out


def greedy_from(ck, ids, tokens):
    """greedy continuation of ids, one `draft` call per token: its anchor is the likeliest next token"""
    begin = len(ids)
    for _ in range(tokens):
        ids = ids + [json.loads(tidemill("draft", ck.folder, "--tokens", "-", stdin=json.dumps(dict(tokens=ids))))["anchor"]]
        if ids[-1] == 1:
            break
    return ck.tok.decode(ids[begin:], skip_special_tokens=False)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("checkpoint"), ap.add_argument("out")
    ap.add_argument("--text", default=""), ap.add_argument("--baseline", default=""), ap.add_argument("--bins", default="")
    ap.add_argument("--prompts", type=int, default=40)
    a = ap.parse_args()
    ck, out = Checkpoint(a.checkpoint), {}

    def add(name, value):
        out[name] = value
        with open(a.out, "w", encoding="utf8") as f:
            json.dump(out, f, indent=1, ensure_ascii=False)
        print(name, json.dumps(value, ensure_ascii=False)[:2000], flush=True)

    if a.text:
        add("bits_per_byte", bits_per_byte(ck, a.text))
    if a.text and a.baseline:
        add("baseline", bits_per_byte(Checkpoint(a.baseline), a.text))
        add("change", {k: v["bits_per_byte"] / out["baseline"][k]["bits_per_byte"] - 1 for k, v in out["bits_per_byte"].items()})
    if a.bins:
        with open(a.bins + "/held_prompts.jsonl", encoding="utf8") as f:
            add("drafts", acceptance(ck, json_lines(f.read())[:a.prompts]))
        with open(a.bins + "/recall_eval.jsonl", encoding="utf8") as f:
            add("recall", recall(ck, json_lines(f.read())))
    add("answers", card_answers(ck))
    add("replay", check_replay(a.checkpoint))


def check_replay(checkpoint):
    done = subprocess.run([PROGRAM, "check", "replay", "--model", checkpoint], capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()


if __name__ == "__main__":
    main()
