#!/usr/bin/env python3
"""Tests what --log-requests shows of texts: their beginnings, of a length that the level sets, no more than a MiB of one
request's prompts, however many it has, and answers whole that are sent in pieces."""
import json
import re
import sys

from counting import check, finish
from serving import TINY, Server

KIB = 1 << 10
MIB = 1 << 20
BEGIN = "<｜begin▁of▁sentence｜>"  # what the tokenizer puts before each prompt; logs are ASCII
BEGIN_IN_LOG = "".join(chr(byte) if byte < 0x80 else f"\\x{byte:02x}" for byte in BEGIN.encode())
SENTENCE = "Once upon a time, there was a little girl named Lily. "


def prompts_in(server):
    """Returns the prompts of the lines about requests that arrived, as they are logged."""
    lines = [line for line in server.text().splitlines() if "request received" in line]
    texts = [found[1] if (found := re.search(r" prompt=(.*)$", line)) else "" for line in lines]
    return [text.replace(BEGIN_IN_LOG, BEGIN) for text in texts]


def ask(server, prompts):
    status, answer = server.post("/generate", {"text": prompts, "sampling_params": {"max_new_tokens": 1}})
    check("answers", status == 200, answer)


def check_incremental_answers():
    """An answer whose events hold only what is new is logged whole."""
    with Server("--chat-template", "v2.5", "--log-requests", "--incremental-streaming-output") as server:
        events = list(server.events("/generate", {"text": SENTENCE, "stream": True,
                                                  "sampling_params": {"max_new_tokens": 24, "temperature": 0}}))
        text = "".join(event["text"] for event in events if event != "[DONE]")
        server.stop()
        logged = [found[1] for line in server.text().splitlines() if (found := re.search(r'request finished .* text="(.*)"$', line))]
        check("the text of an incremental answer is logged whole", len(events) > 3 and
              logged == [json.dumps(text, ensure_ascii=False)[1:-1]], (logged, text))


def main():
    config = json.loads((TINY / "config.json").read_text())
    tokens = config["max_position_embeddings"] - 64
    with Server("--chat-template", "v2.5", "--log-requests") as server:
        text = SENTENCE * (4 * KIB // len(SENTENCE))
        ask(server, [text, "short"])
        shown = prompts_in(server)
        check("level 2: a beginning", len(shown[0].encode()) == 2 * KIB and shown[0][1:] in BEGIN + text, shown)
        check("level 2: a short prompt", shown[1] == f'"{BEGIN}short"', shown)
        server.stop()
    with Server("--chat-template", "v2.5", "--log-requests", "--log-requests-level", 3) as server:
        status, answer = server.post("/tokenize", {"prompt": SENTENCE})
        check("tokenizes", status == 200, answer)
        text = SENTENCE * (tokens // (answer["count"] + 1))
        whole = json.dumps(BEGIN + text, ensure_ascii=False)
        count = MIB // len(whole.encode()) + 20
        ask(server, [text] * count)
        shown = prompts_in(server)
        check("level 3: a line for each prompt", len(shown) == count, (len(shown), count))
        check("level 3: the first is whole", shown[0] == whole, shown[0][:100])
        total = sum(len(prompt.encode()) for prompt in shown)
        check("level 3: a MiB in all", MIB - len(whole.encode()) < total <= MIB, total)
        check("level 3: none at the end", shown[-1] == "", shown[-1][:100])
        check("exit code", server.stop() == 0, server.text()[-2000:])
    check_incremental_answers()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
