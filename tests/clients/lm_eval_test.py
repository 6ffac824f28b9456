#!/usr/bin/env python3
"""Runs `lm_eval --model local-completions` against `hadal serve`: generation and log-likelihoods on local tasks, as
token ids and as text; nothing is downloaded."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from checks import ROOT, TINY, Server, check, check_equal, finish, run

QUESTIONS = 12


def evaluate(server, tasks, tokenized):
    """Runs the tasks; returns (results by task, samples by task)."""
    arguments = (f"model=tiny,base_url=http://127.0.0.1:{server.port}/v1/completions,tokenizer={TINY},"
                 f"num_concurrent=4,max_retries=1,max_length=4096,add_bos_token={tokenized},"
                 f"tokenized_requests={tokenized}")
    with tempfile.TemporaryDirectory(prefix="hadal-clients-") as folder:
        done = subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args",
                               arguments, "--tasks", ",".join(tasks), "--include_path",
                               str(ROOT / "tests/clients/lm_eval_tasks"), "--limit", str(QUESTIONS), "--log_samples",
                               "--output_path", folder + "/out"], cwd=ROOT, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=300, check=False,
                              env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": folder})
        check(f"exit code, tokenized={tokenized}", done.returncode == 0,
              f"{done.returncode}\n{done.stdout}\n{done.stderr}")
        results, samples = {}, {}
        for path in pathlib.Path(folder).glob("out/*/results_*.json"):
            results = json.loads(path.read_text(encoding="utf-8"))["results"]
        for path in pathlib.Path(folder).glob("out/*/samples_*.jsonl"):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            samples[next(task for task in tasks if task in path.name)] = rows
    check_equal("every task has a result", sorted(results), sorted(tasks))
    return results, samples


def token_ids(server):
    results, samples = evaluate(server, ("hadal_sums", "hadal_copy"), True)
    check_equal("copies", results["hadal_copy"]["exact_match,none"], 1.0)
    check_equal("sums", results["hadal_sums"]["acc,none"], 1.0)
    check_equal("all were asked", (len(samples["hadal_copy"]), len(samples["hadal_sums"])), (QUESTIONS, 5))
    for row in samples["hadal_sums"]:
        # Each choice has [log-likelihood, whether greedy decoding would produce it], both as text.
        said = [(float(likelihood), greedy == "True") for likelihood, greedy in row["filtered_resps"]]
        check("log-probabilities", all(-500 < likelihood < 0 for likelihood, _ in said), said)
        check("only the likeliest may be greedy", all(pair == max(said) for pair in said if pair[1]), said)
    check("greedy is told", any(greedy == "True" for row in samples["hadal_sums"] for _, greedy in row["filtered_resps"]))


def text(server):
    """Log-likelihoods are left out: lm_eval does not count the token that a server puts before a text."""
    results, _ = evaluate(server, ("hadal_copy",), False)
    check_equal("copies from text", results["hadal_copy"]["exact_match,none"], 1.0)


def main():
    with Server("--served-model-name", "tiny") as server:
        run(token_ids, server)
        run(text, server)
        check_equal("nothing is left", server.load()["num_reqs"], 0)
        check_equal("exit code", server.stop(), 0)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
