#!/usr/bin/env python3
"""Tests that bodies made to be expensive slow down only their own client: while one client sends them, another client's
/health is answered as before, and the server's memory stays bounded. Nothing here asserts a time, only ratios to an
undisturbed run."""
import json
import sys
import threading
import time

from counting import check, finish
from serving import Server

MIB = 1 << 20
# A probe may wait longer than the slowest undisturbed one by this share of the whole undisturbed run, because two processors
# are also busy with the client of the large bodies.
SHARE = 0.25
PROBES = 300
MEMORY_KIB = 1024 << 10  # growth by all bodies below, one after the other: their bytes, 256 MiB of values, and slack


def hostile_bodies():
    """Yields (name, path, body, the statuses that are right)."""
    yield "one word", "/generate", json.dumps({"text": "a" * (60 * MIB)}), {400}
    yield "spaces", "/v1/completions", json.dumps({"model": "m", "prompt": " " * (60 * MIB)}), {400}
    yield "a long message", "/v1/chat/completions", json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "x y " * (4 * MIB)}]}), {400}
    nested = "[" * 50 + ",".join("1" * 180_000) + "]" * 50
    tools = '[{"type":"function","function":{"name":"f","x":%s}}]' % nested
    yield "nested tools", "/v1/chat/completions", (
        '{"model":"m","messages":[{"role":"user","content":"a"}],"tools":%s}' % tools), {400}
    yield "many values", "/generate", '{"text":"a","x":[' + "[]," * (20 * MIB) + "[]]}", {400}
    yield "many tokens", "/tokenize", json.dumps({"prompt": "7 " * (10 * MIB)}), {400}
    yield "many ids", "/detokenize", json.dumps({"tokens": [5] * (2 * MIB)}), {400}


def peak_kib(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def probe(server, until):
    """Returns the seconds of each /health answer, one after the other, until `until(count)`."""
    seconds = []
    while not until(len(seconds)):
        begin = time.monotonic()
        status, _, _ = server.request("GET", "/health")
        seconds.append(time.monotonic() - begin)
        check("/health", status == 200, status)
        time.sleep(0.005)
    return seconds


def main():
    with Server("--chat-template", "v2.5") as server:
        begin = time.monotonic()
        quiet = probe(server, lambda count: count >= PROBES)
        allowed = max(quiet) + SHARE * (time.monotonic() - begin)
        for name, path, body, statuses in hostile_bodies():
            body = body.encode()
            answers = []
            client = threading.Thread(target=lambda path=path, body=body, answers=answers: answers.append(
                server.request("POST", path, body)))
            client.start()
            disturbed = probe(server, lambda _, client=client: not client.is_alive())
            client.join()
            status, _, answer = answers[0] if answers else (None, None, b"no answer")
            check(f"{name}: the answer", status in statuses, (status, answer[:200]))
            check(f"{name}: another client's /health", max(disturbed) <= allowed, (max(disturbed), allowed))
            del body
        check("memory", peak_kib(server) <= MEMORY_KIB, f"{peak_kib(server)} KiB")
        status, answer = server.post("/generate", {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4}})
        check("still generates", status == 200 and answer["meta_info"]["completion_tokens"] > 0, answer)
        check("exit code", server.stop() == 0, server.text()[-2000:])
    return finish()


if __name__ == "__main__":
    sys.exit(main())
