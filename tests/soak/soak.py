#!/usr/bin/env python3
"""Puts random load on one server for a while: lengths, prefixes, streams, aborts by client and by request id,
clients that vanish or dawdle, and broken requests. The server must answer each request once, give the greedy
answers that it gave before the random load, lose no page, and end by SIGTERM with exit code 0.
    tests/soak/soak.py [--minutes 15] [--clients 24] [--seed N]      $HADAL_BINARY: the server's binary
The last line is "N passed, N failed"."""
import argparse
import collections
import json
import pathlib
import random
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from counting import check, finish  # noqa: E402
from serving import Server  # noqa: E402

WORDS = "fox river lantern seven brave kite valley number letter winter copy sum step garden".split()
SYSTEM = [" ".join(random.Random(i).choices(WORDS, k=40 + 60 * i)) for i in range(6)]
POOL_TOKENS = 2048  # few enough that requests are retracted all the time


def make_prompt(rng):
    prefix = rng.choice(SYSTEM)[:rng.randrange(2000)] if rng.random() < 0.7 else ""
    return prefix + " ".join(rng.choices(WORDS, k=int(2 ** rng.uniform(0, 8))))


class Storm:
    def __init__(self, server, until, seed):
        self.server, self.until, self.seed = server, until, seed
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.problems = []
        self.known = []  # (request, expected output ids), answered before the random load

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def problem(self, text):
        with self.lock:
            self.problems.append(text)

    def request(self, rng, **extra):
        return {"text": make_prompt(rng), "sampling_params": {
            "temperature": rng.choice([0, 0.7, 1.5]), "top_p": rng.choice([1.0, 0.9]),
            "max_new_tokens": int(2 ** rng.uniform(0, 7)), "ignore_eos": rng.random() < 0.5,
            **({"stop": rng.choices(WORDS, k=2)} if rng.random() < 0.3 else {})}, **extra}

    # Each function uses or abuses the server in one way.
    def whole(self, rng):
        status, answer = self.server.post("/generate", self.request(rng))
        if status == 200 and answer["meta_info"]["finish_reason"] is not None:
            self.count("answered")
        elif status == 503:
            self.count("refused: queue full")
        else:
            self.problem(f"whole: {status} {answer}")

    def stream(self, rng):
        request = self.request(rng, stream=True)
        finished = done = 0
        text = ""
        for event in self.server.events("/generate", request):
            if event == "[DONE]":
                done += 1
                continue
            if not event["text"].startswith(text):
                self.problem(f"stream: text changed from {text!r} to {event['text']!r}")
            text = event["text"]
            finished += event["meta_info"]["finish_reason"] is not None
        if (finished, done) != (1, 1):
            self.problem(f"stream: {finished} finish reasons, {done} [DONE]")
        self.count("streamed")

    def vanish(self, rng):
        body = json.dumps(self.request(rng, stream=rng.random() < 0.7)).encode()
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        data = head % len(body) + body
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as client:
            client.sendall(data[:rng.randrange(1, len(data) + 1)] if rng.random() < 0.4 else data)
            if rng.random() < 0.7:
                client.settimeout(rng.uniform(0, 0.5))
                try:
                    client.recv(rng.randrange(1, 4096))
                except TimeoutError:
                    pass
            if rng.random() < 0.5:  # a reset instead of an orderly end
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.count("vanished")

    def abort(self, rng):
        rid = f"soak-{rng.getrandbits(60)}"
        timer = threading.Timer(rng.uniform(0, 0.4), lambda: self.server.request("POST", "/abort_request", {"rid": rid}))
        timer.start()
        status, answer = self.server.post("/generate", self.request(rng, rid=rid))
        timer.join()
        if status == 503:
            self.count("refused: queue full")
        elif status == 200 and answer["meta_info"]["finish_reason"]:
            self.count("ended by abort" if answer["meta_info"]["finish_reason"]["type"] == "abort" else "ended before its abort")
        else:
            self.problem(f"abort: {status} {answer}")

    def broken(self, rng):
        body = json.dumps(self.request(rng)).encode()
        kind = rng.randrange(4)
        allowed = (400, 503)
        if kind == 0:
            body = body[:rng.randrange(len(body))]
        elif kind == 1:  # may land inside a string and still be JSON
            allowed = (200, 400, 503)
            at = rng.randrange(len(body))
            body = body[:at] + rng.randbytes(3) + body[at:]
        elif kind == 2:
            body = json.dumps({"text": "x", "sampling_params": {"temperature": -1}}).encode()
        else:
            body = b"[" * rng.randrange(1, 100_000)
        status = self.server.request("POST", "/generate", body, {"Content-Type": "application/json"})[0]
        if status not in allowed:
            self.problem(f"broken: {status} for {body[:200]!r}")
        self.count("broken")

    def dawdle(self, rng):
        body = json.dumps(self.request(rng, stream=True)).encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                           % len(body) + body)
            while client.recv(64) and rng.random() > 0.02:
                time.sleep(0.005)
        self.count("dawdled")

    def look(self, rng):
        path = rng.choice(["/health", "/server_info", "/get_load", "/metrics", "/v1/models", "/model_info"])
        status = self.server.request("GET", path)[0]
        if status != 200:
            self.problem(f"look: {path} gave {status}")
        self.count("looked")

    def known_answer(self, rng):
        request, expected = rng.choice(self.known)
        status, answer = self.server.post("/generate", request)
        if status == 200 and answer["output_ids"] != expected:
            self.problem(f"known: {request} gave {answer['output_ids']} instead of {expected}")
        self.count("greedy answers equal" if status == 200 else "refused: queue full")

    def client(self, index):
        rng = random.Random(self.seed * 1000 + index)
        ways = [self.whole, self.stream, self.vanish, self.abort, self.broken, self.dawdle, self.look,
                self.known_answer]
        weights = [4, 4, 3, 2, 1, 1, 1, 3]
        while time.monotonic() < self.until:
            way = rng.choices(ways, weights)[0]
            try:
                way(rng)
            except Exception as error:  # noqa: BLE001 - whatever a client sees is the finding
                self.problem(f"{way.__name__}: {type(error).__name__}: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--check", action="store_true", help="only check these arguments")
    options = parser.parse_args()
    if options.check:
        return 0
    print(f"seed {options.seed}, {options.clients} clients, {options.minutes} minutes", flush=True)

    with Server("--max-total-tokens", POOL_TOKENS, "--max-running-requests", 12, "--max-queued-requests", 64,
                "--chunked-prefill-size", 128, "--schedule-conservativeness", 0.1, "--enable-metrics",
                "--context-length", 2048) as server:
        storm = Storm(server, time.monotonic() + options.minutes * 60, options.seed)
        rng = random.Random(options.seed)
        for _ in range(12):
            request = storm.request(rng)
            request["sampling_params"]["temperature"] = 0
            storm.known.append((request, server.post("/generate", request)[1]["output_ids"]))
        threads = [threading.Thread(target=storm.client, args=(i,)) for i in range(options.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for what, count in sorted(storm.counts.items()):
            print(f"{count:8d} {what}")
        check("requests were ended by abort", storm.counts["ended by abort"] or options.minutes < 1)
        check("no client saw anything wrong", not storm.problems,
              f"{len(storm.problems)} problems, the first: " + "\n  ".join(storm.problems[:5]))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and server.load()["num_reqs"] + server.load()["num_waiting_reqs"]:
            time.sleep(0.1)
        check("nothing is left running or waiting", server.load()["num_reqs"] == 0, server.load())
        status, _, answer = server.request("POST", "/flush_cache")
        check("the cache can be flushed", status == 200, answer)
        # Every page must be free again, so a request that needs the whole pool must fit.
        whole = {"input_ids": [5] * (POOL_TOKENS - 32), "sampling_params": {"max_new_tokens": 32, "ignore_eos": True}}
        status, answer = server.post("/generate", whole)
        check("the pool is whole", status == 200 and answer["meta_info"]["completion_tokens"] == 32, answer)
        check("SIGTERM ends it with 0", server.stop() == 0)
        log = server.text()
        for sign in ("ERROR: AddressSanitizer", "WARNING: ThreadSanitizer", "runtime error:", "LeakSanitizer", "integrity"):
            check(f"no {sign!r} in its log", sign not in log, log[log.find(sign):][:4000])
    return finish()


if __name__ == "__main__":
    sys.exit(main())
