#!/usr/bin/env python3
"""Tests the limit of waiting requests at `hadal serve`: a batch starts whole or not at all, and one client leaves places
to another. It uses the real binary and the bundled model."""
import json
import sys
import tempfile
import threading
import time

from counting import check, finish
from serving import Server

WAIT_S = 120


def ask(server, key, path, body):
    """Returns (status, headers, parsed answer)."""
    status, headers, answer = server.request("POST", path, body, {"Authorization": f"Bearer {key}"})
    return status, headers, json.loads(answer or b"null")


def batch(count, tokens=3):
    return {"text": "The", "sampling_params": {"n": count, "temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}


def information(server, path):
    return json.loads(server.request("GET", path, headers={"Authorization": "Bearer root"})[2])


def waiting(server):
    return information(server, "/get_load")[0]["num_waiting_reqs"]


def wait_for(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


class Asked:
    """Sends a request on a thread; `answer` is the response."""

    def __init__(self, server, key, path, body):
        self.answer = None
        self.thread = threading.Thread(target=lambda: setattr(self, "answer", ask(server, key, path, body)))
        self.thread.start()

    def status(self):
        self.thread.join(WAIT_S)
        return self.answer and self.answer[0]


def refused(name, found, status, *texts):
    message = (found[2] or {}).get("message", "")
    check(name, found[0] == status and all(text in message for text in texts), found)
    check(f"{name}: Retry-After", (found[1]["Retry-After"] is not None) == (status == 503), dict(found[1]))


def a_batch_starts_whole_or_not_at_all_and_others_find_room(server):
    check("paused", ask(server, "root", "/pause_generation", {})[0] == 200)
    first = Asked(server, "a", "/generate", batch(40))
    check("the first batch waits", wait_for(lambda: waiting(server) == 40), waiting(server))
    for path, body in (("/generate", batch(20)), ("/v1/completions", {"prompt": ["a"] * 20, "max_tokens": 3}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": 20, "max_tokens": 3})):
        refused(f"{path} of too many", ask(server, "a", path, body), 503,
                "40 of its requests are waiting, and this one needs 20 places; allowed: 56", "max-queued-requests")
        check(f"nothing of {path} has started", waiting(server) == 40, waiting(server))
    second = Asked(server, "a", "/v1/completions", {"prompt": ["a"] * 16, "max_tokens": 3})
    check("a batch that fits waits", wait_for(lambda: waiting(server) == 56), waiting(server))
    refused("one more of this client", ask(server, "a", "/generate", batch(1)), 503, "56 of its requests are waiting; allowed: 56")
    other = Asked(server, "b", "/generate", batch(8))
    check("another client has room", wait_for(lambda: waiting(server) == 64), waiting(server))
    refused("a full queue", ask(server, "b", "/generate", batch(1)), 503, "the queue is full: 64 requests are waiting")
    check("resumed", ask(server, "root", "/continue_generation", {})[0] == 200)
    check("everybody is answered", [asked.status() for asked in (first, second, other)] == [200] * 3,
          [asked.answer for asked in (first, second, other)])
    check("every choice of the batch", len(first.answer[2]) == 40, first.answer)


def what_can_never_fit_is_refused_for_good(server):
    refused("57 choices", ask(server, "a", "/generate", batch(57)), 400, "57 generations", "allowed: 56", "7/8 of 64")
    check("56 choices", ask(server, "a", "/generate", batch(56))[0] == 200)


def a_client_that_leaves_frees_its_places(server):
    check("paused again", ask(server, "root", "/pause_generation", {})[0] == 200)
    for _ in range(3):
        connection = server.connect()
        connection.request("POST", "/generate", json.dumps(batch(56)), {"Authorization": "Bearer a"})
        check("it waits", wait_for(lambda: waiting(server) == 56), waiting(server))
        connection.close()
        check("its places are free", wait_for(lambda: waiting(server) == 0), waiting(server))
    check("resumed again", ask(server, "root", "/continue_generation", {})[0] == 200)
    check("and can be taken", ask(server, "a", "/generate", batch(56))[0] == 200)


def the_limit_in_force_is_shown():
    for flags, limit in (((), 4096), (("--max-running-requests", 300), 4800), (("--max-queued-requests", 5), 5)):
        with Server(*flags) as server:
            shown = json.loads(server.request("GET", "/get_server_info")[2])["max_queued_requests"]
            check(f"the limit with {flags}", shown == limit, shown)


def main():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("alice a\nbob b\n")
        keys.flush()
        with Server("--api-key-file", keys.name, "--admin-api-key", "root", "--max-running-requests", 2,
                    "--max-queued-requests", 64) as server:
            a_batch_starts_whole_or_not_at_all_and_others_find_room(server)
            what_can_never_fit_is_refused_for_good(server)
            a_client_that_leaves_frees_its_places(server)
            check("exit code", server.stop() == 0, server.text())
    the_limit_in_force_is_shown()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
