#!/usr/bin/env python3
"""What PyTorch and a simple Triton kernel take for the products of tidemill_gpu_bench.

    gpu_peers.py [--seconds N] [--filter REGEX] [--tsv FILE] [--ours TSV of tidemill_gpu_bench]

Needs torch (CUDA) and, for the experts, triton. The same shapes and numbers of tokens, weights that
take turns beyond the L2 cache, groups of calls behind a waiting kernel. Peers are given less to do:

    torch fp8    torch._scaled_mm, one scale for a whole tensor (ours: one for 32 x 32 weights and for
                 32 values of an activation), the activation's quantisation not counted
    torch bf16   the same matrix in bf16: twice the bytes
    triton fp4   x @ dequantised(w): FP4 codes with a scale for 32, chosen experts one after another
                 in one launch, no shared expert, no SwiGLU, no weighted sum
    torch sdpa   the 640 gathered rows of a token already in bf16 and side by side

With --ours a last column has the peer's time over ours: above 1 we are faster."""
import argparse
import re
import time

import torch

TOKENS = (1, 8, 32, 64, 128, 512, 2048, 8192)
ROTATED_BYTES = 256 << 20
SAMPLE_US = 1000.0
# name, rows, columns, groups
QUANTISED = (
    ("wq_a", 1280, 5120, 1),
    ("wq_b", 32768, 1280, 1),
    ("wkv", 512, 5120, 1),
    ("wo_a", 8192, 4096, 8),
    ("wo_b", 5120, 8192, 1),
)
STORED_BF16 = (("head", 129280, 5120, 1), ("gate", 384, 5120, 1))


def microseconds(call, seconds):
    """Sorted times of a call, each the mean of a group."""
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)

    def group(calls, hold_cycles):
        if hold_cycles:
            torch.cuda._sleep(int(hold_cycles))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / calls

    for _ in range(3):
        estimate = group(1, 0)
    calls = max(1, min(50, int(SAMPLE_US / max(estimate, 0.1)) + 1))
    start = time.perf_counter()
    for _ in range(calls):
        call()
    enqueue_us = (time.perf_counter() - start) * 1e6
    torch.cuda.synchronize()
    hold_cycles = min(1.5 * enqueue_us + 20, 20000) * 2000  # of about 2 GHz
    samples = []
    start = time.perf_counter()
    while len(samples) < 5 or (time.perf_counter() - start < seconds and len(samples) < 200):
        samples.append(group(calls, hold_cycles))
    return sorted(samples)


class Turns:
    """Copies of the same thing that take turns."""

    def __init__(self, make, bytes_each, most=64):
        self.items = [make() for _ in range(max(1, min(most, -(-ROTATED_BYTES // bytes_each))))]
        self.at = 0

    def next(self):
        self.at = (self.at + 1) % len(self.items)
        return self.items[self.at]


def random_fp8(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)


def random_bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def linear_fp8(rows, columns):
    weights = Turns(lambda: random_fp8(rows, columns), rows * columns)
    scale = torch.ones((), device="cuda")

    def prepare(tokens):
        x = random_fp8(max(tokens, 16), columns)  # fewer rows are refused

        def call():
            torch._scaled_mm(x, weights.next().T, scale_a=scale, scale_b=scale,
                             out_dtype=torch.bfloat16)

        return call, rows * columns + tokens * (columns + 2 * rows), 2 * tokens * rows * columns

    return prepare


def linear_bf16(rows, columns, groups):
    weights = Turns(lambda: random_bf16(groups, rows // groups, columns), 2 * rows * columns)

    def prepare(tokens):
        x = random_bf16(groups, tokens, columns)

        def call():
            if groups == 1:
                torch.mm(x[0], weights.next()[0].T)
            else:
                torch.bmm(x, weights.next().transpose(1, 2))

        moved = 2 * (rows * columns + tokens * (groups * columns + rows))
        return call, moved, 2 * tokens * rows * columns

    return prepare


def attention():
    heads, width, keys = 64, 512, 640

    def prepare(tokens):
        each = tokens * keys * width * 2
        kv = Turns(lambda: random_bf16(tokens, 1, keys, width), each, most=16)
        q = random_bf16(tokens, 1, heads, width)

        def call():
            rows = kv.next()
            torch.nn.functional.scaled_dot_product_attention(q, rows, rows)

        return call, each + 4 * tokens * heads * width, 4 * tokens * heads * keys * width

    return prepare


def experts():
    import triton
    import triton.language as tl

    @triton.jit
    def fp4_product(x, codes, scales, token, expert, out, n, k: tl.constexpr, ROWS: tl.constexpr,
                    COLUMNS: tl.constexpr, BY_PAIR: tl.constexpr):
        pair = tl.program_id(0)
        rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        from_row = tl.load(token + pair) if not BY_PAIR else pair
        e = tl.load(expert + pair).to(tl.int64)
        half = tl.arange(0, COLUMNS // 2)
        total = tl.zeros((ROWS,), tl.float32)
        for begin in range(0, k, COLUMNS):
            at = (e * n + rows[:, None]) * (k // 2) + begin // 2 + half[None, :]
            byte = tl.load(codes + at)
            s = tl.load(scales + (e * n + rows[:, None]) * (k // 32) + (begin + 2 * half[None, :]) // 32)
            scale = (s.to(tl.int32) << 23).to(tl.float32, bitcast=True)
            low, high = (byte & 15).to(tl.int32), (byte >> 4).to(tl.int32)
            # E2M1 as float32: magnitude bits moved to exponent and mantissa, times 2^126.
            lowf = (((low & 8) << 28) | ((low & 7) << 22)).to(tl.float32, bitcast=True) * 8.507059e37
            highf = (((high & 8) << 28) | ((high & 7) << 22)).to(tl.float32, bitcast=True) * 8.507059e37
            even = tl.load(x + from_row * k + begin + 2 * half).to(tl.float32)
            odd = tl.load(x + from_row * k + begin + 2 * half + 1).to(tl.float32)
            total += tl.sum((lowf * even[None, :] + highf * odd[None, :]) * scale, 1)
        tl.store(out + pair * n + rows, total.to(tl.bfloat16))

    hidden, inner, count, topk = 5120, 2304, 384, 6
    shapes = ((2 * inner, hidden), (hidden, inner))
    codes = [torch.randint(0, 256, (count, n, k // 2), device="cuda", dtype=torch.uint8)
             for n, k in shapes]
    scales = [torch.full((count, n, k // 32), 120, device="cuda", dtype=torch.uint8)
              for n, k in shapes]

    def prepare(tokens):
        if tokens > 128:  # a product of vectors is no way to do many
            return None
        x = random_bf16(tokens, hidden)
        pairs = tokens * topk
        token = torch.arange(tokens, device="cuda").repeat_interleave(topk)
        choices = Turns(lambda: torch.stack([torch.randperm(count, device="cuda")[:topk]
                                             for _ in range(tokens)]).flatten(), 16 << 20)
        up = torch.empty(pairs, 2 * inner, device="cuda", dtype=torch.bfloat16)
        down = torch.empty(pairs, hidden, device="cuda", dtype=torch.bfloat16)
        touched = sum(torch.unique(c).numel() for c in choices.items) / len(choices.items)

        def call():
            ids = choices.next()
            fp4_product[(pairs, 2 * inner // 16)](x, codes[0], scales[0], token, ids, up, 2 * inner,
                                                  hidden, 16, 512, False)
            # SwiGLU left out: the first half of the rows.
            fp4_product[(pairs, hidden // 16)](up[:, :inner].contiguous(), codes[1], scales[1], token,
                                               ids, down, hidden, inner, 16, 256, True)

        weights = 3 * hidden * inner
        return call, touched * weights * (0.5 + 1 / 32), 2 * pairs * weights

    return prepare


def cases():
    for name, rows, columns, groups in QUANTISED:
        if groups == 1:
            yield name, "torch fp8", lambda r=rows, c=columns: linear_fp8(r, c), 8192
        yield name, "torch bf16", lambda r=rows, c=columns, g=groups: linear_bf16(r, c, g), 8192
    for name, rows, columns, groups in STORED_BF16:
        most = 512 if name == "head" else 8192
        yield name, "torch bf16", lambda r=rows, c=columns, g=groups: linear_bf16(r, c, g), most
    yield "attend", "torch sdpa", attention, 512
    yield "experts", "triton fp4", experts, 128


def read_ours(path):
    ours = {}
    for line in open(path).read().splitlines()[1:]:
        op, tokens, us = line.split("\t")[:3]
        ours[op, int(tokens)] = float(us)
    return ours


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--filter", default="")
    parser.add_argument("--tsv")
    parser.add_argument("--ours")
    parser.add_argument("--bf16-tflops", type=float, default=792)
    parser.add_argument("--read-gbs", type=float, default=4650)
    options = parser.parse_args()
    ours = read_ours(options.ours) if options.ours else {}
    wanted = re.compile(options.filter)
    start = time.perf_counter()
    lines = []
    todo = [(name, peer, make, [t for t in TOKENS if t <= most and wanted.search(f"{name}/{t}")])
            for name, peer, make, most in cases()]
    left = sum(len(tokens) for *_, tokens in todo)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'op':<9}{'peer':<12}{'T':>5}{'us':>11}{'min':>10}..{'p90':<10}{'GB/s':>5}{'TFLOP/s':>8}"
          f"{'floor us':>10}{'floor':>8}{'/ours':>7}")
    for name, peer, make, tokens in todo:
        if not tokens:
            continue
        try:
            prepare = make()
            for t in tokens:
                share = max(0.02, (options.seconds - time.perf_counter() + start) / left)
                left -= 1
                prepared = prepare(t)
                if prepared is None:
                    continue
                call, moved, flops = prepared
                times = microseconds(call, min(0.6 * share, 1.0))
                us = times[len(times) // 2]
                floor = 1e6 * max(moved / (options.read_gbs * 1e9), flops / (options.bf16_tflops * 1e12))
                against = f"{us / ours[name, t]:>7.2f}" if (name, t) in ours else ""
                print(f"{name:<9}{peer:<12}{t:>5}{us:>11.1f}{times[0]:>10.1f}.."
                      f"{times[(len(times) - 1) * 9 // 10]:<10.1f}{moved / us / 1e3:>5.0f}"
                      f"{flops / us / 1e6:>8.1f}{floor:>10.1f}{100 * floor / us:>7.1f}%{against}",
                      flush=True)
                lines.append((name, peer, t, us, times[0], moved, flops, floor))
        except Exception as error:  # a peer that cannot is no reason to stop the others
            print(f"{name:<9}{peer:<12} {type(error).__name__}: {str(error).splitlines()[0][:120]}")
        torch.cuda.empty_cache()
    if options.tsv:
        with open(options.tsv, "w") as file:
            file.write("op\tpeer\ttokens\tus\tleast_us\tbytes\tflops\tfloor_us\n")
            for line in lines:
                file.write("\t".join(str(value) for value in line) + "\n")


if __name__ == "__main__":
    main()
