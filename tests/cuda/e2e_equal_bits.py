#!/usr/bin/env python3
"""Answers of the bundled model on the GPU, tokens and log-probabilities, are the same bits in every run: again, without
graphs, without graph padding, without the overlapped schedule; for one request and for a batch of five choices, greedy and
sampled. `hadal logits` writes the same bytes twice. And a request's greedy tokens do not depend on its company except where
its two best logits are closer than ten times what company moves them by.

    HADAL_BINARY=build/cuda-release/hadal tests/cuda/e2e_equal_bits.py [--verbose]
"""
import json
import math
import pathlib
import sys
import tempfile

import gpu_checks as gpu

sys.path.insert(0, str(gpu.ROOT / "tests/e2e"))
import equality_test  # noqa: E402
from serving import Server  # noqa: E402

VARIANTS = {"again": (), "eager": ("--disable-cuda-graph",), "no padding": ("--disable-cuda-graph-padding",),
            "plain loop": ("--disable-overlap-schedule",),
            "plain loop, eager": ("--disable-overlap-schedule", "--disable-cuda-graph")}
REQUESTS = {
    "one greedy": ("--temperature", 0),
    "one sampled": ("--temperature", 0.9, "--seed", 5),
    "one truncated": ("--temperature", 1.3, "--top-k", 40, "--top-p", 0.95, "--seed", 6),
    "one penalised": ("--temperature", 0.7, "--repetition-penalty", 1.2, "--frequency-penalty", 0.3, "--seed", 7),
    "five sampled": ("--temperature", 1.0, "--n", 5, "--seed", 8),
}
# A change of batch moves sums by no more than this, in log-probability: else the rule above would excuse anything.
MAX_COMPANY_ERROR = 0.02


def answer(flags):
    found = json.loads(gpu.run(gpu.HADAL, "generate", "--model-path", gpu.TINY, *gpu.GPU, *gpu.SMALL_CACHE, "--prompt",
                               "Write a short story about a brave fox named Rin.", "--chat", "--json", "--logprobs",
                               "--top-logprobs", 5, "--max-new-tokens", 96, "--ignore-eos", *flags))
    return [{key: choice[key] for key in ("output_ids", "output_token_logprobs", "output_top_logprobs")}
            for choice in found.get("choices", [found])]


def check_request(name):
    flags = REQUESTS[name]
    expected = answer(flags)
    assert all(len(choice["output_ids"]) == 96 for choice in expected)
    for variant, more in VARIANTS.items():
        got = answer((*flags, *more))
        for i, (one, other) in enumerate(zip(expected, got)):
            if one == other:
                continue
            at = next(at for at in range(96) if one["output_top_logprobs"][at] != other["output_top_logprobs"][at])
            raise AssertionError(f"{variant}: choice {i} differs from token {at} on: "
                                 f"{one['output_top_logprobs'][at][:2]} / {other['output_top_logprobs'][at][:2]}")
    return f"{len(expected) * 96} tokens, {len(VARIANTS)} variants"


def check_logits():
    files = []
    with tempfile.TemporaryDirectory(prefix="hadal-gpu-bits-") as directory:
        for i in range(2):
            for mode in ("prefill", "decode"):
                output = pathlib.Path(directory) / f"{i}.{mode}"
                gpu.run(gpu.HADAL, "logits", "--model-path", gpu.TINY, *gpu.GPU, "--input-ids",
                        gpu.ids_text(range(2, 300)), "--output", output, "--mode", mode)
                files.append(output.read_bytes())
    assert files[0] == files[2] and files[1] == files[3]
    return f"{len(files[0])} bytes"


def check_company():
    requests = equality_test.make_requests(64, seed=20)
    with Server(*gpu.GPU, "--disable-radix-cache", "--chunked-prefill-size", 512) as server:
        alone = [None] * len(requests)
        for i, request in enumerate(requests):
            equality_test.ask(server, request, alone, i)
    with Server(*gpu.GPU, "--chunked-prefill-size", 96) as server:
        together = equality_test.ask_all(server, requests)
    squares = []
    for one, other in zip(alone, together):
        for at, (a, b) in enumerate(zip(one["output_ids"], other["output_ids"])):
            if a != b:
                break
            difference = [r["meta_info"]["output_top_logprobs"][at][0][0] for r in (one, other)]
            squares.append((difference[0] - difference[1]) ** 2)
    error = math.sqrt(math.fsum(squares) / len(squares))
    assert error <= MAX_COMPANY_ERROR, f"log-probabilities move by {error:.4f}"
    equality_test.GAP = gpu.GAP_FACTOR * error
    compared, excused, difference = equality_test.compare(alone, together)
    assert difference is None, f"{difference}; log-probabilities move by {error:.2e}"
    return f"{compared} tokens equal, {excused} behind a close call; log-probabilities move by {error:.2e}"


def main():
    checks = [(name, lambda name=name: check_request(name)) for name in REQUESTS]
    checks += [("logits twice", check_logits), ("company", check_company)]
    return gpu.main(checks, workers=4)


if __name__ == "__main__":
    sys.exit(main())
