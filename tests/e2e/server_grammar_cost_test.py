#!/usr/bin/env python3
"""Tests that expensive grammars end with one error, and do not keep the answers of others from being made."""
import json
import sys
import threading

from counting import check, finish
from serving import Server

# The parser states of this grammar multiply with every "a", until one token takes seconds.
HOSTILE = "((((a?){99}){99}){99}){99}"


def generate(text, tokens, **sampling):
    return {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **sampling}}


def neighbours_finish_while_expensive_grammars_run_and_get_the_same_text():
    with Server("--max-total-tokens", 8192) as server:
        token = json.loads(server.request("POST", "/tokenize", {"prompt": "a"})[2])["tokens"][-1]
        alone = server.post("/generate", generate("Once upon a time", 200))[1]["text"]
        schema = generate("A person:", 100, json_schema='{"type":"object","properties":{"n":{"type":"string"}}}')
        constrained = server.post("/generate", schema)[1]["text"]
        ended = []

        def attack():
            body = generate("Hello", 1000, regex=HOSTILE, logit_bias={str(token): 100})
            ended.append(server.post("/generate", body)[1])

        threads = [threading.Thread(target=attack) for _ in range(8)]
        for thread in threads:
            thread.start()
        free = server.post("/generate", generate("Once upon a time", 200))[1]
        check("a free neighbour gets the same text", free.get("text") == alone, free)
        other = server.post("/generate", schema)[1]
        check("a constrained neighbour gets the same text", other.get("text") == constrained, other)
        check("neighbours do not wait for the expensive answers", len(ended) < len(threads), f"{len(ended)} had ended")
        for thread in threads:
            thread.join()
        check("every expensive request ends", len(ended) == len(threads), ended)
        for answer in ended:
            reason = answer.get("meta_info", {}).get("finish_reason") or {}
            check("an expensive grammar ends with its error",
                  reason.get("type") == "abort" and "the grammar is too expensive" in reason.get("message", ""), answer)


def main():
    neighbours_finish_while_expensive_grammars_run_and_get_the_same_text()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
