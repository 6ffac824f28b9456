"""Lists hostile cases against the limit of memory for all requests, on a server where it is 64 MiB."""
import json

from case import chat, generate, head, post, rows

FULL = frozenset({503})
EITHER = frozenset({200, 503})
SIXTY_FOUR = {"clients": 64, "seconds": 1.5}


def scores(new, **more):
    return {"return_logprob": True, "top_logprobs_num": 128,
            "sampling_params": {"max_new_tokens": new, "ignore_eos": True, "temperature": 0}, **more}


CASES = rows("memory", [
    ("a body of 60 MiB", post("/generate", b'{"text":"a","x":"' + b"y" * (60 << 20) + b'"}'), {"statuses": FULL, "clients": 2}),
    ("two bodies of 40 MiB that never end", (head("POST", "/generate", 40 << 20) + b"y" * (1 << 20), ("wait", 1.0)),
     {"answers": False, "once": True}),
    # One client has at most 7/8 of the limit, so the neighbour is served while all these bodies wait for their last byte.
    ("bodies of 64 KiB that fill the limit", (head("POST", "/generate", 64 << 10) + b" " * ((64 << 10) - 1), ("wait", 1.0)),
     {"answers": False, "once": True, "clients": 1000, "memory_bytes": 144 << 20}),
    ("values of JSON", post("/generate", b'{"text":"a","x":[' + b"1," * (3 << 20) + b"1]}"), {"statuses": FULL}),
    ("a long word to tokenise", post("/tokenize", {"prompt": "a" * (3 << 20)}), {"statuses": FULL}),
    ("ids that become long texts", post("/detokenize", {"tokens": [4000] * 400_000}), {"answer_ratio": 16, "answer_bytes": 16 << 20}),
    # The choices are as many as fit into the queue, with a block of answer each.
    ("choices", post("/generate", {"text": ["a"] * 28, "sampling_params": {"max_new_tokens": 256, "n": 128}}), {"statuses": FULL}),
    ("scores of a prompt, times n", post("/generate", scores(1, text="a b c d " * 200, logprob_start_len=0)),
     {"answer_bytes": 16 << 20}),
    ("scores of a long answer", post("/generate", scores(3000, text="Once")), {"answer_bytes": 32 << 20, "seconds": 2.0}),
    ("scores of long streams", post("/generate", scores(3000, text="Once", stream=True)),
     {"answer_bytes": 128 << 20, "seconds": 2.0, "answers": False}),
    ("scores of chats", chat(logprobs=True, top_logprobs=20, max_tokens=2000, n=8),
     {"answers": False, "seconds": 1.5, "answer_bytes": 4 << 20}),
    ("64 clients with 16 choices each", generate(n=16, new=200), {**SIXTY_FOUR, "answer_bytes": 1 << 20}),
    ("64 clients with large texts", post("/generate", b'{"text":"a","x":"' + b"y" * (1 << 20) + b'"}'), SIXTY_FOUR),
    ("a grammar of 200 kB", generate(regex="|".join(f"word{i}" for i in range(20_000))), {"statuses": frozenset({200, 400, 503})}),
    ("answers that nobody reads", (head("POST", "/detokenize", len(json.dumps({"tokens": [4000] * 100_000})))
                                   + json.dumps({"tokens": [4000] * 100_000}).encode(), ("wait", 1.0)),
     {**SIXTY_FOUR, "answers": False}),
], group="memory", statuses=EITHER, memory_bytes=128 << 20)
