#!/usr/bin/env python3
"""Runs `sglang.bench_serving` itself against `hadal serve`, and `hadal bench serving` beside it: every request succeeds
and both sides count the same tokens."""
import json
import os
import subprocess
import sys
import tempfile

from checks import BIN, Server, check, check_equal, finish, run

PROMPTS, INPUT, OUTPUT, CONCURRENCY = 24, 48, 16, 8
LOAD = ["--random-input-len", INPUT, "--random-output-len", OUTPUT,
        "--random-range-ratio", 1, "--num-prompts", PROMPTS, "--max-concurrency", CONCURRENCY, "--seed", 1,
        "--disable-tqdm"]
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def line(report, label):
    """Returns the number after `label:` in a printed report, or None."""
    for row in report.splitlines():
        if row.startswith(label + ":"):
            return float(row.split(":")[1])
    return None


def tokens(server):
    """Returns (prompt, generated) tokens that the server has counted."""
    text = server.request("GET", "/metrics")[2].decode()
    return [sum(float(row.split()[-1]) for row in text.splitlines() if row.startswith(f"sglang:{name}_total{{"))
            for name in ("prompt_tokens", "generation_tokens")]


def measure(name, command, server, dataset="random-ids"):
    """Runs the command, checks its report against what the server counted, and returns its jsonl entry."""
    before = tokens(server)
    with tempfile.TemporaryDirectory(prefix="hadal-clients-") as folder:
        output = os.path.join(folder, "out.jsonl")
        done = subprocess.run([str(word) for word in [*command, *LOAD, "--dataset-name", dataset, "--host",
                                                      "127.0.0.1", "--port", server.port, "--output-file", output]],
                              env=OFFLINE, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
                              check=False)
        check(f"{name}: exit code", done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}")
        if done.returncode != 0:
            return {}
        with open(output, encoding="utf-8") as lines:
            entry = json.loads(lines.readlines()[-1])
    check_equal(f"{name}: successful", line(done.stdout, "Successful requests"), PROMPTS)
    check_equal(f"{name}: completed", entry["completed"], PROMPTS)
    check_equal(f"{name}: generated", entry["total_output_tokens"], PROMPTS * OUTPUT)
    check_equal(f"{name}: printed", line(done.stdout, "Total generated tokens"), PROMPTS * OUTPUT)
    for figure in ("request_throughput", "output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms",
                   "median_e2e_latency_ms"):
        check(f"{name}: {figure}", entry[figure] > 0, entry[figure])
    generated = tokens(server)[1] - before[1]
    # The benchmark's warm-up is one more request of the same kind.
    check_equal(f"{name}: the server generated", generated, (PROMPTS + 1) * OUTPUT)
    return {**entry, "server_prompt_tokens": tokens(server)[0] - before[0]}


def sglang(server):
    module = [sys.executable, "-m", "sglang.bench_serving"]
    for backend in ("sglang", "sglang-oai", "sglang-oai-chat"):
        entry = measure(backend, [*module, "--backend", backend, "--extra-request-body", '{"top_p": 0.9}'
                                  if backend != "sglang" else '{"top_k": 5}'], server)
        check("server information", not entry or entry["server_info"]["internal_states"], entry.get("server_info"))
    name = "token ids"
    entry = measure(name, [*module, "--backend", "sglang", "--tokenize-prompt", "--flush-cache", "--return-logprob"],
                    server)
    if entry:
        per_prompt = entry["total_input_tokens"] / PROMPTS
        check_equal(f"{name}: the server read", entry["server_prompt_tokens"], entry["total_input_tokens"] + per_prompt)


def ours(server):
    for backend in ("sglang", "sglang-oai", "sglang-oai-chat"):
        measure(f"hadal bench serving, {backend}", [BIN, "bench", "serving", "--backend", backend], server,
                dataset="random" if backend.endswith("chat") else "random-ids")


def main():
    with Server("--enable-metrics") as server:
        run(sglang, server)
        run(ours, server)
        check_equal("nothing is left", server.load()["num_reqs"], 0)
        check_equal("exit code", server.stop(), 0)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
