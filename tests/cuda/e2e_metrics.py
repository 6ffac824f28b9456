#!/usr/bin/env python3
"""Checks /metrics on the GPU: is_cuda_graph is 0 before anything has run, 1 after decode steps that ran as graphs, and stays 0
with --disable-cuda-graph. Every other metric is seen to change by tests/e2e/metrics_test.py.

    HADAL_BINARY=build/cuda-release/hadal tests/cuda/e2e_metrics.py [--verbose]
"""
import re
import sys

import gpu_checks as gpu

sys.path.insert(0, str(gpu.ROOT / "tests/e2e"))

from serving import Server  # noqa: E402  pylint: disable=wrong-import-position


def is_cuda_graph(server):
    text = server.request("GET", "/metrics")[2].decode()
    return float(re.search(r"^sglang:is_cuda_graph\{.*\} (\S+)$", text, re.M)[1])


def values(*flags):
    """Returns is_cuda_graph of a server before its first request, after a prompt alone and after an answer."""
    # The warm-up is left out, because it generates: nothing has run when the metrics are read first.
    with Server("--enable-metrics", "--skip-server-warmup", *gpu.GPU, *gpu.SMALL_CACHE, *flags) as server:
        seen = [is_cuda_graph(server)]
        for max_new_tokens in (1, 16):
            status, answer = server.post("/generate", {"text": "A brave fox", "sampling_params": {
                "max_new_tokens": max_new_tokens, "ignore_eos": True}})
            assert status == 200, answer
            seen.append(is_cuda_graph(server))
    return seen


def expect(flags, wanted):
    seen = values(*flags)
    assert seen == wanted, f"is_cuda_graph went {seen}, expected {wanted}"


if __name__ == "__main__":
    with_graphs = [0, 0, 1 if gpu.DEVICE != "cpu" else 0]
    sys.exit(gpu.main([("graphs", lambda: expect([], with_graphs)),
                       ("no graphs", lambda: expect(["--disable-cuda-graph"], [0, 0, 0]))], workers=1))
