#!/usr/bin/env python3
"""Tests that an expensive grammar ends with one error, and does not keep other requests from being
answered."""
import json
import pathlib
import sys
import tempfile
import threading

from counting import check, finish
from serving import Server

# The parser states of this grammar multiply with every "a", until one token takes seconds.
HOSTILE = "((((a?){99}){99}){99}){99}"


def generate(text, tokens, **sampling):
    return {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, **sampling}}


def neighbours_get_tokens_and_the_same_text_while_expensive_masks_are_made():
    with tempfile.NamedTemporaryFile() as record, \
            Server("--max-total-tokens", 8192, "--record-plans", record.name) as server:
        token = json.loads(server.request("POST", "/tokenize", {"prompt": "a"})[2])["tokens"][-1]
        free = generate("Once upon a time", 200)
        schema = generate("A person:", 100, json_schema='{"type":"object","properties":{"n":{"type":"string"}}}')
        alone = server.post("/generate", free)[1]["text"]
        constrained = server.post("/generate", schema)[1]["text"]
        ended = []

        def attack():
            body = generate("Hello", 1000, regex=HOSTILE, logit_bias={str(token): 100})
            ended.append(server.post("/generate", body)[1])

        threads = [threading.Thread(target=attack) for _ in range(8)]
        for thread in threads:
            thread.start()
        attacked = True
        while attacked:  # so that another client's request runs for as long as the attack lasts, however fast the
                         # machine is
            attacked = any(thread.is_alive() for thread in threads)
            answer = server.post("/generate", free)[1]
            check("a free neighbour gets the same text", answer.get("text") == alone, answer)
            answer = server.post("/generate", schema)[1]
            check("a constrained neighbour gets the same text", answer.get("text") == constrained, answer)
        for thread in threads:
            thread.join()
        check("every expensive request ends", len(ended) == len(threads), ended)
        for answer in ended:
            reason = answer.get("meta_info", {}).get("finish_reason") or {}
            check("an expensive grammar ends with its error",
                  reason.get("type") == "abort" and "the grammar is too expensive" in reason.get("message", ""), answer)
        check("the server ends", server.stop() == 0, server.text())
        steps_go_on_while_expensive_masks_are_made(record.name, len(threads))


def steps_go_on_while_expensive_masks_are_made(path, num_expensive):
    """Checks the order of the engine's decisions by the record of plans, which does not depend on how long anything takes."""
    calls = [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]
    expensive = {call["id"] for call in calls if call["call"] == "abort"}
    check("only the expensive requests are aborted", len(expensive) == num_expensive, expensive)
    waiting, tokens = set(), 0
    for call in calls:
        if call["call"] == "hold":
            waiting.add(call["id"])
        elif call["call"] in ("release", "abort"):
            waiting.discard(call["id"])
        elif call["call"] == "complete" and waiting & expensive:
            tokens += sum(1 for outcome in call["outcomes"] if outcome[0] not in expensive and outcome[1] >= 0)
    check("neighbours get tokens while expensive requests wait for their masks", tokens > 0, tokens)


def main():
    neighbours_get_tokens_and_the_same_text_while_expensive_masks_are_made()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
