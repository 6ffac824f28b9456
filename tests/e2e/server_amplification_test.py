#!/usr/bin/env python3
"""Tests what one request may demand: the limits with their flags and defaults, batches of honest size, and scores of
prompts that a stream sends no more often than its readers need. It uses the real binary and the bundled model."""
import contextlib
import json
import subprocess
import sys

from counting import check, finish
from serving import BIN, TINY, Server

CONTEXT = 4096  # of the bundled model
DEFAULT_TOKENS = 4_194_304


def refusal(server, path, body):
    """Returns (status, message, the field that the error names)."""
    status, answer = server.post(path, body)
    error = answer.get("error", {}) if isinstance(answer, dict) else {}
    return status, error.get("message", ""), error.get("param")


def begins(server, path, body):
    """Returns whether the request is accepted: its stream begins, and then the client leaves."""
    events = server.events(path, {**body, "stream": True})
    with contextlib.closing(events):
        try:
            return next(events) is not None
        except RuntimeError as error:
            return str(error)


def batch(num_prompts, prompt_tokens, max_new_tokens, **fields):
    """Returns a batch of different prompts for /generate."""
    return {"input_ids": [[3 + (i + 7 * j) % 4000 for j in range(prompt_tokens)] for i in range(num_prompts)],
            "sampling_params": {"max_new_tokens": max_new_tokens, "ignore_eos": True}, **fields}


def check_defaults(server):
    info = json.loads(server.request("GET", "/server_info")[2])
    values = [info[name] for name in ("max_request_tokens", "max_logprobs", "max_prompt_logprobs")]
    check("defaults in /server_info", values == [DEFAULT_TOKENS, 128, 4_194_304], values)
    check("1,024 prompts of 1,024 tokens, with as many for each answer",
          begins(server, "/generate", batch(1024, 1024, 1024)) is True)
    check("128 choices that fill the context", begins(server, "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Hello"}], "n": 128}) is True)
    scores = {"return_logprob": True, "logprob_start_len": 0}
    status, answer = server.post("/generate", batch(64, 24, 1, top_logprobs_num=10, **scores))
    check("a batch of an evaluation", status == 200 and len(answer) == 64 and all(
        len(one["meta_info"]["input_top_logprobs"]) == 24 for one in answer), status)

    status, message, field = refusal(server, "/generate", batch(16384, 1, CONTEXT - 1))
    check("the most generations of the longest answers", status == 400 and field is None and message ==
          f"the request asks for {16384 * CONTEXT} tokens (generations: 16384; tokens of prompts: 16384, of answers: "
          f"{16384 * (CONTEXT - 1)}); at most {DEFAULT_TOKENS} are allowed (--max-request-tokens)",
          (status, message, field))
    status, message, _ = refusal(server, "/v1/completions", {"prompt": ["a"] * 128, "n": 128, "max_tokens": 2000})
    check("the same of completions", status == 400 and "generations: 16384;" in message, (status, message))
    status, message, field = refusal(server, "/generate", batch(9, 4000, 1, top_logprobs_num=128, **scores))
    check("too many scores", status == 400 and field == "logprob_start_len" and f"{9 * 4000 * 129} log-prob" in message
          and "at most 4194304 are allowed (--max-prompt-logprobs)" in message, (status, message, field))
    check("the server does nothing for them", server.request("GET", "/health")[0] == 200)


def check_flags():
    with Server("--max-logprobs", 3, "--max-request-tokens", 500, "--max-prompt-logprobs", 60) as server:
        one = {"return_logprob": True, "logprob_start_len": 0}
        check("as many alternatives as allowed", server.post("/generate", batch(1, 4, 1, top_logprobs_num=3, **one))[0] == 200)
        for path, body, field in (
                ("/generate", batch(1, 4, 1, top_logprobs_num=4, **one), "top_logprobs_num"),
                ("/v1/completions", {"prompt": "a", "logprobs": 4}, "logprobs"),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "logprobs": True,
                                          "top_logprobs": 4, "max_tokens": 4}, "top_logprobs")):
            status, message, named = refusal(server, path, body)
            check(f"{path}: alternatives", status == 400 and named == field and
                  message == f"{field} is 4; must be an integer in [0, 3] (--max-logprobs)", (status, message, named))
        check("as many tokens as allowed", server.post("/generate", batch(10, 30, 20))[0] == 200)
        status, message, _ = refusal(server, "/generate", batch(10, 30, 21))
        check("one token more for each", status == 400 and "asks for 510 tokens" in message, (status, message))
        check("the length that the server chooses counts",
              refusal(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})[0] == 400)
        check("as many scores as allowed", server.post("/generate", batch(3, 10, 1, top_logprobs_num=1, **one))[0] == 200)
        status, message, _ = refusal(server, "/generate", batch(3, 10, 1, top_logprobs_num=2, **one))
        check("too many scores", status == 400 and "asks for 90 log-probabilities" in message, (status, message))
    with Server("--max-request-tokens", 0) as server:
        check("no limit of tokens", begins(server, "/generate", batch(1100, 1, CONTEXT - 1)) is True)
    for flags in (["--max-logprobs", "129"], ["--max-logprobs", "-1"], ["--max-request-tokens", "-1"],
                  ["--max-prompt-logprobs", "many"]):
        done = subprocess.run([BIN, "serve", "--model-path", TINY, *flags], capture_output=True, text=True, timeout=60,
                              check=False)
        check(f"{flags}", done.returncode == 2 and flags[0] in done.stderr, (done.returncode, done.stderr))


def by_choice(events, count):
    """Returns, for each choice of a stream, what `count` says about its events."""
    out = {}
    for event in events:
        if event == "[DONE]":
            continue
        choice = event["choices"][0] if "choices" in event else event
        out.setdefault(choice["index"], []).append(count(choice))
    return out


def native_scores(event):
    meta = event["meta_info"]
    return len(meta["input_token_logprobs"]), len(meta["input_top_logprobs"])


def check_streams(server, is_incremental):
    kind = "incremental" if is_incremental else "cumulative"
    body = batch(2, 9, 5, return_logprob=True, logprob_start_len=0, top_logprobs_num=2, stream=True)
    body["sampling_params"]["n"] = 2
    for choice, counts in by_choice(server.events("/generate", body), native_scores).items():
        full = [0] if is_incremental else [0, len(counts) - 1]
        check(f"{kind}: scores of choice {choice}", len(counts) > 1 and
              counts == [(9, 9) if i in full else (0, 0) for i in range(len(counts))], counts)
    body = {"prompt": body["input_ids"], "n": 2, "max_tokens": 5, "ignore_eos": True, "echo": True, "logprobs": 2,
            "stream": True}
    counts = by_choice(server.events("/v1/completions", body), lambda choice: len(choice["logprobs"]["tokens"]))
    for choice, numbers in counts.items():
        check(f"{kind}: echo of choice {choice}", sum(numbers) == 9 + 5 and numbers[0] > 9 and len(numbers) > 1, numbers)
    check(f"{kind}: four choices", len(counts) == 4, counts)


def main():
    with Server() as server:
        check_defaults(server)
        check_streams(server, False)
        check("exit code", server.stop() == 0, server.text()[-2000:])
    with Server("--incremental-streaming-output") as server:
        check_streams(server, True)
    check_flags()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
