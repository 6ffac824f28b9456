#!/usr/bin/env python3
"""Tests that the tokens and log-probabilities of answers on a GPU have the same bits in every run: in a second run, and
without graphs, graph padding or the overlapped schedule. It does so for one request and for batches of five that begin in
one step, on several models: the bundled model, the same weights as bfloat16 and (batches only) in float16, and V2-Lite's
dimensions with dummy weights. `hadal logits` must write the same bytes twice. A request's greedy tokens must not depend
on the other requests in its batch, except where its two best logits are closer than ten times what the others change.

    HADAL_BINARY=build/cuda-release/hadal tests/cuda/e2e_equal_bits.py [--verbose]
"""
import json
import math
import pathlib
import random
import sys
import tempfile
import threading
import time

import e2e_evals
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
}
# Other requests may change the distance between the two best logits by at most this (root mean square), because
# otherwise the rule above would excuse any difference.
MAX_COMPANY_ERROR = {"FP8": 0.5, "bfloat16": 0.1}
SERVER_CACHE = ("--max-total-tokens", 65536)
TOKENS = 96


def answer(model, flags):
    found = json.loads(gpu.run(gpu.HADAL, "generate", *model, *gpu.GPU, *gpu.SMALL_CACHE, "--json", "--logprobs",
                               "--top-logprobs", 5, "--max-new-tokens", TOKENS, "--ignore-eos", *flags))
    return [{key: choice[key] for key in ("output_ids", "output_token_logprobs", "output_top_logprobs")}
            for choice in found.get("choices", [found])]


def check_request(model, name):
    flags = REQUESTS[name]
    expected = answer(model, flags)
    assert all(len(choice["output_ids"]) == TOKENS for choice in expected)
    for variant, more in VARIANTS.items():
        got = answer(model, (*flags, *more))
        for i, (one, other) in enumerate(zip(expected, got)):
            if one == other:
                continue
            at = next(at for at in range(TOKENS) if one["output_top_logprobs"][at] != other["output_top_logprobs"][at])
            raise AssertionError(f"{variant}: choice {i} differs from token {at} on: "
                                 f"{one['output_top_logprobs'][at][:2]} / {other['output_top_logprobs'][at][:2]}")
    return f"{len(expected) * TOKENS} tokens, {len(VARIANTS)} variants"


def batch_answers(model, flags):
    """Returns the answers to five requests of different lengths and sampling, which a paused server queues and then begins in
    one step."""
    rng = random.Random(3)
    requests = [{"input_ids": [rng.randrange(10, 4000) for _ in range(17 + 40 * i)], "return_logprob": True,
                 "top_logprobs_num": 3,
                 "sampling_params": {"temperature": 0 if i == 0 else 0.5 + 0.2 * i, "sampling_seed": i, "ignore_eos": True,
                                     "top_p": 0.95 if i % 2 else 1.0, "max_new_tokens": TOKENS - 8 * i}} for i in range(5)]
    answers = [None] * len(requests)
    with Server(*gpu.GPU, *SERVER_CACHE, "--skip-tokenizer-init", *model[2:], *flags, model=model[1]) as server:
        assert server.post("/pause_generation", {"mode": "in_place"})[0] == 200
        threads = [threading.Thread(target=equality_test.ask, args=(server, request, answers, i))
                   for i, request in enumerate(requests)]
        for i, thread in enumerate(threads):
            thread.start()
            deadline = time.monotonic() + 30
            while server.load()["num_waiting_reqs"] <= i:  # in this order
                assert time.monotonic() < deadline, server.load()
                time.sleep(0.005)
        assert server.post("/continue_generation", {})[0] == 200
        for thread in threads:
            thread.join()
    for answer in answers:
        assert "error" not in answer, answer
    return [{"output_ids": answer["output_ids"], "logprobs": answer["meta_info"]["output_token_logprobs"],
             "top": answer["meta_info"]["output_top_logprobs"]} for answer in answers]


def check_batch(model):
    expected = batch_answers(model, ())
    for variant, more in VARIANTS.items():
        got = batch_answers(model, more)
        for i, (one, other) in enumerate(zip(expected, got)):
            if one == other:
                continue
            at = next(at for at, (a, b) in enumerate(zip(one["top"], other["top"])) if a != b)
            raise AssertionError(f"{variant}: request {i} differs from token {at} on: {one['top'][at]} / {other['top'][at]}")
    return f"{sum(len(answer['output_ids']) for answer in expected)} tokens, {len(VARIANTS)} variants"


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


def gaps_of(answer, at):
    """Returns (the two best tokens, their distance)."""
    best, second = answer["meta_info"]["output_top_logprobs"][at][:2]
    return {best[1], second[1]}, best[0] - second[0]


def compare_greedy_answers(alone, together, gap):
    """Returns (tokens that are equal, tokens excused after a close call, the first real difference or None)

    A close call is a token whose two best log-probabilities, alone, are at most `gap` apart; after it the texts differ."""
    num_equal = excused = 0
    for i, (one, other) in enumerate(zip(alone, together)):
        if "error" in one or "error" in other:
            return num_equal, excused, f"request {i}: {one.get('error')} / {other.get('error')}"
        expected, got = one["output_ids"], other["output_ids"]
        for at in range(max(len(expected), len(got))):
            if at < min(len(expected), len(got)) and expected[at] == got[at]:
                num_equal += 1
                continue
            if at < len(expected) and abs(gaps_of(one, at)[1]) <= gap:
                excused += max(len(expected), len(got)) - at
                break
            return num_equal, excused, f"request {i}, token {at}: {expected[at:at + 3]} / {got[at:at + 3]}"
    return num_equal, excused, None


def check_company(name, model):
    requests = equality_test.make_requests(64, seed=20)
    with Server(*gpu.GPU, *SERVER_CACHE, "--disable-radix-cache", "--chunked-prefill-size", 512, model=model) as server:
        alone = [None] * len(requests)
        for i, request in enumerate(requests):
            equality_test.ask(server, request, alone, i)
    with Server(*gpu.GPU, *SERVER_CACHE, "--chunked-prefill-size", 96, model=model) as server:
        together = equality_test.ask_all(server, requests)
    squares = []
    for one, other in zip(alone, together):
        for at, (a, b) in enumerate(zip(one["output_ids"], other["output_ids"])):
            (tokens, gap), (other_tokens, other_gap) = gaps_of(one, at), gaps_of(other, at)
            if a != b and tokens == other_tokens:
                other_gap = -other_gap
            if tokens == other_tokens:
                squares.append((gap - other_gap) ** 2)
            if a != b:
                break
    error = math.sqrt(math.fsum(squares) / len(squares))
    assert error <= MAX_COMPANY_ERROR[name], f"the best logits' distance moves by {error:.4f}"
    compared, excused, difference = compare_greedy_answers(alone, together, gpu.GAP_FACTOR * error)
    assert difference is None, f"{difference}; the best logits' distance moves by {error:.2e}"
    return f"{compared} tokens equal, {excused} after a close call; the best logits' distance moves by {error:.2e}"


def main():
    with tempfile.TemporaryDirectory(prefix="hadal-gpu-bf16-") as directory:
        widened = e2e_evals.make_bf16_model(pathlib.Path(directory))
        story = ("--prompt", "Write a short story about a brave fox named Rin.", "--chat")
        checks = [("logits twice", check_logits)]
        for name, model in (("FP8", gpu.TINY), ("bfloat16", widened)):
            flags = ("--model-path", model, *story)
            checks += [(f"{name}, {request}", lambda flags=flags, request=request: check_request(flags, request))
                       for request in REQUESTS]
            checks.append((f"{name}, five at once", lambda model=model: check_batch(("--model-path", model))))
            checks.append((f"{name}, company", lambda name=name, model=model: check_company(name, model)))
        checks.append(("float16, five at once", lambda: check_batch(("--model-path", widened, "--dtype", "float16"))))
        if gpu.DEVICE == "cuda":
            dims = ("--model-path", gpu.ROOT / "bench/configs/v2-lite", "--load-format", "dummy")
            checks.append(("V2-Lite's dimensions, bfloat16, five at once", lambda: check_batch(dims)))
            checks.append(("V2-Lite's dimensions, FP8, five at once",
                           lambda: check_batch((*dims, "--quantization", "fp8"))))
        return gpu.main(checks, workers=4)


if __name__ == "__main__":
    sys.exit(main())
