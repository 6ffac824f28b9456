#!/usr/bin/env python3
"""Greedy answers do not depend on the other requests: 64 mixed requests at once, with chunked prefill and prefix hits, give the
same tokens and log-probabilities, bit for bit, as each gives alone. The same holds when a tiny pool forces requests out and in
again. On the CPU no difference is excused, however close the two best tokens are."""
import random
import sys
import threading

from counting import check, finish
from serving import Server

SHARED = ("You are a careful assistant. Answer in short sentences. Add numbers digit by digit, copy words letter by "
          "letter, and never leave out a step. ") * 6
TASKS = ["What is {} + {}?", "Write a short story about a brave fox named number {} and {} friends.",
         "Repeat: {} {} {}", "Count from {} to {}."]


def make_requests(count, seed):
    rng = random.Random(seed)
    requests = []
    for i in range(count):
        numbers = [rng.randrange(10 ** rng.randrange(1, 6)) for _ in range(3)]
        text = TASKS[i % len(TASKS)].format(*numbers)
        kind = rng.randrange(4)
        if kind == 0:
            text = SHARED + text
        elif kind == 1:
            text = SHARED[:rng.randrange(len(SHARED))] + text
        elif kind == 2:
            text = " ".join(str(rng.randrange(1000)) for _ in range(rng.randrange(10, 300))) + "\n" + text
        requests.append({"text": text, "return_logprob": True, "top_logprobs_num": 2,
                         "sampling_params": {"temperature": 0, "max_new_tokens": rng.randrange(8, 96),
                                             "ignore_eos": rng.randrange(2) == 0}})
    return requests


def ask(server, request, answers, index):
    status, answer = server.post("/generate", request)
    answers[index] = answer if status == 200 else {"error": answer}


def ask_all(server, requests):
    answers = [None] * len(requests)
    threads = [threading.Thread(target=ask, args=(server, request, answers, i)) for i, request in enumerate(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def compare(alone, together):
    """Returns (tokens that are equal, the first difference or None)"""
    num_equal = 0
    for i, (one, other) in enumerate(zip(alone, together)):
        if "error" in one or "error" in other:
            return num_equal, f"request {i}: {one.get('error')} / {other.get('error')}"
        for kind, values in (("output_ids", (one["output_ids"], other["output_ids"])),
                             ("output_top_logprobs", [answer["meta_info"]["output_top_logprobs"] for answer in (one, other)])):
            expected, got = values
            at = next((at for at, (a, b) in enumerate(zip(expected, got)) if a != b), min(len(expected), len(got)))
            if expected != got:
                return num_equal, f"request {i}, {kind}[{at}]: {expected[at:at + 3]} / {got[at:at + 3]}"
        num_equal += len(one["output_ids"])
    return num_equal, None


def main():
    requests = make_requests(64, seed=20)

    with Server("--disable-radix-cache", "--chunked-prefill-size", 512) as server:
        alone = [None] * len(requests)
        for i, request in enumerate(requests):
            ask(server, request, alone, i)

    def run(name, *flags, rounds=1):
        with Server(*flags) as server:
            for round_idx in range(rounds):
                together = ask_all(server, requests)
                num_equal, difference = compare(alone, together)
                print(f"{name}, round {round_idx + 1}: {num_equal} tokens equal")
                check(name, difference is None and num_equal > 0, difference)
            load, metrics = server.load(), server.request("GET", "/metrics")[2].decode()
            check(name + " leaves nothing behind", load["num_reqs"] == 0 and load["num_waiting_reqs"] == 0, load)
            return metrics, [answer["meta_info"]["cached_tokens"] for answer in together if "meta_info" in answer]

    def value(metrics, name):
        return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines()
                   if line.startswith(name + "{") or line.startswith(name + " "))

    _, cached = run("concurrent, cached, chunked", "--enable-metrics", "--chunked-prefill-size", 96, rounds=2)
    check("prefixes were reused", sum(cached) > 1000, cached)
    run("plain loop", "--enable-metrics", "--chunked-prefill-size", 64, "--disable-overlap-schedule")
    metrics, _ = run("tiny pool with retraction", "--enable-metrics", "--max-total-tokens", 2048, "--max-running-requests", 32,
                     "--schedule-conservativeness", 0.01)
    retracted = value(metrics, "sglang:num_retracted_reqs")
    print(f"retractions: {retracted:.0f}")
    check("requests were retracted", retracted > 0)

    return finish()


if __name__ == "__main__":
    sys.exit(main())
