#!/usr/bin/env python3
"""Measures cuDNN's causal attention (qk 192, v 128, bfloat16) beside cuda_mla_prefill_bench, row by row and round by round,
so that a card that gets hot or slow affects both. Each time is a call inside a CUDA graph, the median of replays, as the
bench takes them; cuDNN runs on [batch, heads, tokens, dim] tensors and on views of [batch, tokens, heads, dim], and the
faster counts. It needs torch, and writes one JSON line for each row and implementation to standard output.

    bench/cuda/prefill_cudnn.py --beside build/cuda-release/bench/cuda/cuda_mla_prefill_bench [--rounds 3] [--rows h128:1x8192,…]
"""
import argparse
import json
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

ROWS = ("h128:1x4096", "h128:1x8192", "h128:8x4096", "h16:1x1024", "h16:1x4096", "h16:8x4096", "h128:1x1024")
QK, VALUE = 192, 128
SCALE = 0.0722


def parse(row):
    heads, tokens = row.removeprefix("h").split(":")
    segments, q_len = tokens.split("x")
    return int(heads), int(segments), int(q_len)


def flops(heads, segments, q_len):
    return 2.0 * (QK + VALUE) * segments * q_len * (q_len + 1) / 2.0 * heads


def inputs(heads, segments, q_len, tokens_first):
    tensors = []
    for dim in (QK, QK, VALUE):
        if tokens_first:
            tensors.append(torch.randn(segments, q_len, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2))
        else:
            tensors.append(torch.randn(segments, heads, q_len, dim, device="cuda", dtype=torch.bfloat16))
    return tensors


def time_in_graph(call, calls, replays):
    """Returns microseconds per call."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    times = []
    for replay in range(-2, replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay >= 0:
            times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def cudnn_us(row):
    heads, segments, q_len = row
    calls = 3 if flops(*row) > 1e12 else 12
    best = None
    for tokens_first in (False, True):
        q, k, v = inputs(heads, segments, q_len, tokens_first)
        def attend(q=q, k=k, v=v):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)

        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            us = time_in_graph(attend, calls, 5)
        best = us if best is None else min(best, us)
        del q, k, v, attend
        torch.cuda.empty_cache()
    return best


def own_us(program, row):
    heads, segments, q_len = row
    output = subprocess.run([program, "--row", f"{heads},{segments},{q_len},0"], capture_output=True, text=True, check=True)
    return json.loads(output.stdout.splitlines()[-1])["us"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", help="cuda_mla_prefill_bench; without it cuDNN alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default=",".join(ROWS), help="comma-separated h<heads>:<sequences>x<tokens>")
    options = parser.parse_args()
    names = options.rows.split(",")
    times = {name: {"cudnn": [], "hadal": []} for name in names}
    for _ in range(options.rounds):
        for name in names:
            row = parse(name)
            times[name]["cudnn"].append(cudnn_us(row))
            if options.beside:
                times[name]["hadal"].append(own_us(options.beside, row))
    for name in names:
        heads, segments, q_len = parse(name)
        for implementation, found in times[name].items():
            if found:
                us = statistics.median(found)
                print(json.dumps({"bench": "mla_prefill", "implementation": implementation, "heads": heads,
                                  "sequences": segments, "tokens": q_len, "us": round(us, 2),
                                  "tflops": round(flops(heads, segments, q_len) / us * 1e-6, 1),
                                  "rounds_us": [round(t, 2) for t in found], "torch": torch.__version__,
                                  "cudnn": torch.backends.cudnn.version()}), flush=True)
        both = times[name]
        if both["hadal"]:
            ratio = statistics.median(both["cudnn"]) / statistics.median(both["hadal"])
            print(f"{name:12} {ratio:.2f}x cuDNN", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
