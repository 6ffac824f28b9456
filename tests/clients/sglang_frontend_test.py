#!/usr/bin/env python3
"""Runs SGLang's own frontend language (sglang.lang) with its RuntimeEndpoint on `hadal serve`: gen, select, fork, streams,
batches and constrained output."""
import json
import logging
import sys

import sglang as sgl
from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint

from checks import Server, check, check_equal, finish, questions, run

STORY = "Once upon a time"


@sgl.function
def story(s, tokens):
    s += STORY + sgl.gen("rest", max_tokens=tokens, temperature=0)


@sgl.function
def answer(s, question):
    s += "<｜User｜>" + question + "<｜Assistant｜></think>" + sgl.gen("answer", max_tokens=64, temperature=0, stop="\n")


@sgl.function
def choose(s, question, choices):
    s += "<｜User｜>" + question + "<｜Assistant｜></think>" + sgl.select("answer", choices=choices)


@sgl.function
def three_ways(s):
    s += STORY
    forks = s.fork(3)
    for i, fork in enumerate(forks):
        fork += f" {i}" + sgl.gen("end", max_tokens=6, temperature=0)
    forks.join()
    s += "".join(fork["end"] for fork in forks)


@sgl.function
def constrained(s):
    s += "Is it so? " + sgl.gen("word", regex="(yes|no)", max_tokens=8)
    s += " As JSON: " + sgl.gen("json", max_tokens=200, json_schema=json.dumps({
        "type": "object", "properties": {"so": {"type": "boolean"}}, "required": ["so"], "additionalProperties": False}))
    s += " A number: " + sgl.gen("number", dtype=int, max_tokens=6)


def generates():
    state = story.run(tokens=16)
    check("it goes on", state.text().startswith(STORY) and len(state["rest"]) > 16, state.text())
    meta = state.get_meta_info("rest")
    check_equal("tokens", (meta["completion_tokens"], meta["finish_reason"]["type"]), (16, "length"))
    pieces = list(story.run(tokens=16, stream=True).text_iter())
    check("streamed", len(pieces) > 5 and "".join(pieces) == state.text(), pieces)
    batch = story.run_batch([{"tokens": count} for count in (4, 8, 12, 16)], num_threads=4)
    check("a batch", all(state.text().startswith(one.text()) for one in batch), [one.text() for one in batch])
    for question in questions("copy", 3):
        check_equal("answers", answer.run(question=question["messages"][0]["content"])["answer"],
                    question["answer"].split("\n")[0])


def selects():
    for question, choices, right in (("What is 2 + 3?", ["9", "5", "7"], "5"),
                                     ("Repeat: Klaibet 7", ["Klaibet 7", "Hello there", "7 7"], "Klaibet 7")):
        state = choose.run(question=question, choices=choices)
        check_equal(question, state["answer"], right)
        entries = state.get_meta_info("answer")["input_token_logprobs"]
        check("each has its text", all(isinstance(entry[2], str) for row in entries for entry in row), entries)


def forks_and_constraints():
    state = three_ways.run()
    check("three ends", len(state.text()) > len(STORY) + 12, state.text())
    state = constrained.run()
    check("regex", state["word"] in ("yes", "no"), state["word"])
    check("json", isinstance(json.loads(state["json"])["so"], bool), state["json"])
    check("a number", int(state["number"]) is not None, state["number"])


def main():
    logging.disable(logging.WARNING)
    # RuntimeEndpoint.flush_cache() sends GET.
    with Server("--served-model-name", "tiny", "--allow-get-admin") as server:
        backend = RuntimeEndpoint(f"http://127.0.0.1:{server.port}")
        sgl.set_default_backend(backend)
        for claim in (generates, selects, forks_and_constraints):
            run(claim)
        backend.flush_cache()
        check_equal("nothing is left", server.load()["num_reqs"], 0)
        check_equal("exit code", server.stop(), 0)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
