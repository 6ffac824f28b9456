#!/usr/bin/env python3
"""Every metric that /metrics exports is seen to change when what it measures happens. The list of metrics is the
exporter's own: a new one fails here until the table ACTIONS says what changes it."""
import re
import sys
import threading
import time

from counting import check, finish
from serving import Server

PREFIX = "sglang:"
POOL_TOKENS = 2048
MAX_RUNNING = 4


def scrape(server):
    """Returns {metric: value}. The value of a histogram is how many values it has counted."""
    status, _, text = server.request("GET", "/metrics")
    assert status == 200, text
    values = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text.decode(), re.M):
        if name.removeprefix(PREFIX).startswith(("http_", "request_memory_")):
            continue  # the transport's metrics change in server_access_test.py, the ledger's in server_memory_test.py
        if name.startswith("process_") or name == "hadal_build_info":
            continue  # the process's, without the prefix: tests/server/metrics_test.cpp
        sample = name + "_count" if kind == "histogram" else name
        found = re.findall(rf"^{re.escape(sample)}\{{.*\}} (\S+)$", text.decode(), re.M)
        assert len(found) == 1 and name.startswith(PREFIX), (name, found)
        values[name.removeprefix(PREFIX)] = float(found[0])
    return values


def generate(server, ids, max_new_tokens, **more):
    return server.post("/generate", {"input_ids": ids, **more, "sampling_params": {
        "max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}})


def prompt(seed, length):
    return [100 + (seed * 7919 + i * 31) % 3000 for i in range(length)]


def answer(server, seen):
    """Requests one answer of several tokens."""
    generate(server, prompt(1, 200), 8)
    seen(scrape(server))


def answer_again(server, seen):
    """Sends the same prompt a second time, which then comes from the prefix cache."""
    generate(server, prompt(1, 200), 8)
    seen(scrape(server))


def crowd(server, seen):
    """Sends more long requests than may run at a time, with more tokens than the pool holds."""
    threads = [threading.Thread(target=generate, args=(server, prompt(100 + i, 100), 1500)) for i in range(2 * MAX_RUNNING)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if seen(scrape(server)):  # all has been seen
            server.request("POST", "/abort_request", {"abort_all": True})
        time.sleep(0.01)
    seen(scrape(server))


def many_prompts(server, seen):
    """Sends one after another more prompts than the prefix cache can keep."""
    for i in range(6):
        generate(server, prompt(200 + i, 500), 2)
    seen(scrape(server))


def abort(server, seen):
    """Ends a request from outside."""
    thread = threading.Thread(target=generate, args=(server, prompt(300, 50), 1800), kwargs={"rid": "to-abort"})
    thread.start()
    while thread.is_alive():
        server.request("POST", "/abort_request", {"rid": "to-abort"})
        time.sleep(0.01)
    seen(scrape(server))


def unknown_field(server, seen):
    """Sends a field that no API defines."""
    server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 1, "no_api_has_this": 1})
    seen(scrape(server))


def grammar(server, seen):
    """Requests an answer with a grammar, which is then kept."""
    server.post("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 2, "regex": "[a-f]{2,9}"}})
    seen(scrape(server))


def another_start(_, seen):
    """Starts another server, with a larger pool."""
    with Server("--enable-metrics", "--max-total-tokens", 2 * POOL_TOKENS) as other:
        seen(scrape(other))


def speculation(_, seen):
    """Starts another server, which guesses tokens, and requests one answer."""
    with Server("--enable-metrics", "--speculative-algorithm", "NEXTN", "--speculative-fixed") as other:
        generate(other, prompt(1, 200), 64)
        seen(scrape(other))


# These actions make a metric change. A metric that cannot change has its value instead: what a page holds is fixed, and on
# the CPU there are no graphs (tests/cuda/e2e_metrics.py checks that is_cuda_graph changes on a GPU).
ACTIONS = {
    "num_running_reqs": crowd, "num_queue_reqs": crowd, "num_used_tokens": crowd, "token_usage": crowd,
    "gen_throughput": crowd, "utilization": crowd, "num_retracted_reqs": crowd,
    "prompt_tokens_total": answer, "generation_tokens_total": answer, "num_requests_total": answer,
    "time_to_first_token_seconds": answer, "inter_token_latency_seconds": answer,
    "e2e_request_latency_seconds": answer, "queue_time_seconds": answer,
    "prompt_tokens_histogram": answer, "generation_tokens_histogram": answer,
    "unknown_request_fields_total": unknown_field,
    "grammar_cache_entries": grammar, "grammar_cache_bytes": grammar,
    "cached_tokens_total": answer_again, "cache_hit_rate": answer_again,
    "evicted_tokens_total": many_prompts, "num_aborted_requests_total": abort,
    "max_total_num_tokens": another_start, "startup_time_seconds": another_start,
    "spec_accept_length": speculation, "spec_accept_rate": speculation,
    "page_size": 64, "is_cuda_graph": 0,
}


def main():
    # Admission assumes that requests end early, so running requests are retracted when the pool is full.
    with Server("--enable-metrics", "--max-total-tokens", POOL_TOKENS, "--max-running-requests", MAX_RUNNING,
                "--schedule-conservativeness", 0.01) as server:
        exported = scrape(server)
        for name in sorted(set(exported) ^ set(ACTIONS)):
            check(name, False, "exported, and nothing here makes it change" if name in exported else "not exported")
        for action in dict.fromkeys(action for action in ACTIONS.values() if callable(action)):
            before = scrape(server)
            waiting = {name for name, by in ACTIONS.items() if by is action}

            def seen(values):
                """Notes which metrics have changed. Tells whether all metrics of this action have changed."""
                waiting.difference_update({name for name in waiting if values.get(name) != before.get(name)})
                return not waiting

            action(server, seen)
            for name in (name for name, by in ACTIONS.items() if by is action):
                check(f"{name} changes: {action.__doc__}", name not in waiting, f"it stays {before.get(name)}")
        last = scrape(server)
        for name, value in ((name, by) for name, by in ACTIONS.items() if not callable(by)):
            check(f"{name} stays {value}", exported.get(name) == last.get(name) == value, last.get(name))
        check("nothing is left running", last["num_running_reqs"] == last["num_queue_reqs"] == 0, last)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
