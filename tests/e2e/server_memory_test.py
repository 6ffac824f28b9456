#!/usr/bin/env python3
"""Tests --max-request-memory: requests beyond it get 503 and disturb no other request, and the ledger of /metrics is
empty again afterwards. A second server runs with a limit on its address space, so that allocations really fail."""
import json
import os
import re
import socket
import ssl
import sys
import tempfile
import threading
import time

from counting import check, finish
from serving import Server, TlsServer

LIMIT_MIB = 24
# The request for the page itself holds a block of headers and its connection (src/server/http/http_ledger.h).
OWN = {"header": 8 << 10, "connection": 8 << 10}
TLS_CONNECTION = (8 << 10) + (128 << 10)


def ledger_of(page, own):
    """Returns {kind: bytes} of what others than the request for the page hold, and the number of refusals."""
    held = {kind: float(value) for kind, value in
            re.findall(r'^sglang:request_memory_bytes\{.*kind="(\w+)"\} (\S+)$', page, re.M)}
    for kind, size in own.items():
        held[kind] -= size
    refused = sum(float(value) for value in re.findall(r'^sglang:request_memory_refused_total\{.*\} (\S+)$', page, re.M))
    return held, refused


def ledger(server):
    return ledger_of(server.request("GET", "/metrics")[2].decode(), OWN)


def wait_until(condition):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def wait_until_empty(server):
    return wait_until(lambda: not any(ledger(server)[0].values()))


def resident_bytes(server):
    with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) << 10


def hungry(path):
    """Returns a request that needs more than its share of the limit, in the form of `path`."""
    sampling = {"max_new_tokens": 60, "n": 16, "temperature": 0.5}
    if path == "/generate":
        return {"text": "Once", "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 50}
    return {"model": "m", "prompt": "Once", "max_tokens": 60, "n": 16, "logprobs": 50}


def flood(server):
    answers = []

    def ask(path):
        answers.append((path, *server.request("POST", path, hungry(path))))

    threads = [threading.Thread(target=ask, args=(path,)) for path in ["/generate", "/v1/completions"] * 8]
    for thread in threads:
        thread.start()
    # A small request is served meanwhile.
    status, answer = server.post("/generate", {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4}})
    check("a small request beside them", status == 200 and answer["meta_info"]["completion_tokens"] == 4, answer)
    for thread in threads:
        thread.join()
    return answers


def check_limit():
    with Server("--max-request-memory", LIMIT_MIB, "--enable-metrics") as server:
        check("the ledger begins empty", wait_until_empty(server), ledger(server))
        held, refused = ledger(server)
        check("it has nine kinds and no refusals", len(held) == 9 and refused == 0, (held, refused))
        answers = flood(server)
        statuses = sorted(status for _, status, _, _ in answers)
        check("each has one answer", len(answers) == 16 and set(statuses) <= {200, 503}, statuses)
        check("some are served, some are refused", {200, 503} <= set(statuses), statuses)
        for path, status, headers, body in answers:
            if status != 503:
                continue
            error = json.loads(body)
            check(f"{path}: Retry-After", headers.get("Retry-After") == "1", dict(headers))
            check(f"{path}: the message", "max-request-memory" in error["error"]["message"], error)
        check("refusals are counted", ledger(server)[1] >= statuses.count(503), ledger(server))
        check("the ledger is empty again", wait_until_empty(server), ledger(server)[0])
        status, _, body = server.request("POST", "/v1/completions", {"model": "m", "prompt": "x" * (LIMIT_MIB << 20)})
        check("a body beyond the limit", status == 503, (status, body[:200]))
        check("and nothing of it stays", wait_until_empty(server), ledger(server)[0])
        check("exit code", server.stop() == 0, server.text()[-2000:])


def check_clients():
    """Checks that one client's requests leave memory to another client, however many there are."""
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8") as file:
            file.write("greedy greedy-key\nmodest modest-key\n")
        os.chmod(keys, 0o600)
        with Server("--max-request-memory", LIMIT_MIB, "--api-key-file", keys) as server:
            stop, refused = threading.Event(), threading.Event()

            def occupy():
                while not stop.is_set():
                    body = hungry("/generate")
                    for n in (16, 4, 1):  # smaller ones fill what is left
                        body["sampling_params"]["n"] = n
                        status, _, answer = server.request("POST", "/generate", body, {"Authorization": "Bearer greedy-key"})
                        if status == 503 and b"this client's requests" in answer:
                            refused.set()

            threads = [threading.Thread(target=occupy) for _ in range(24)]
            for thread in threads:
                thread.start()
            check("the client's own requests are refused", refused.wait(120))
            small = {"text": "Once", "return_logprob": True, "sampling_params": {"max_new_tokens": 4}}
            statuses = [server.request("POST", "/generate", small, {"Authorization": "Bearer modest-key"})[0]
                        for _ in range(20)]
            stop.set()
            for thread in threads:
                thread.join()
            check("another client is served", statuses == [200] * 20, statuses)
            check("the memory's client ends well", server.stop() == 0, server.text()[-2000:])


def check_address_space():
    """Checks that requests for which there is no memory end with an error, and that the server lives."""
    with Server("--max-request-memory", 1 << 20, "--max-total-tokens", 4096, "--tokenizer-worker-num", 1,
                "--client-body-share", 1, address_space=1500 << 20) as server:
        body = json.dumps({"text": "a", "x": "y" * (60 << 20)}).encode()
        statuses = []

        def ask():
            try:
                statuses.append(server.request("POST", "/generate", body)[0])
            except OSError:
                statuses.append(None)  # refused before all of the body was sent

        threads = [threading.Thread(target=ask) for _ in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # On a busy machine some bodies take longer than a request may take to arrive; these get 408.
        check("answers without memory", len(statuses) == 24 and set(statuses) <= {200, 408, 503, None}, statuses)
        status, answer = server.post("/generate", {"text": "Once", "sampling_params": {"max_new_tokens": 4}})
        check("the server lives", status == 200 and answer["meta_info"]["completion_tokens"] == 4, answer)
        check("exit code", server.stop() == 0, server.text()[-2000:])


def check_tls():
    """Checks that the ledger counts at least what TLS connections really take, and ends with nothing."""
    count = 400

    own = {"header": OWN["header"], "connection": TLS_CONNECTION}

    def read(server):
        return ledger_of(server.request("GET", "/metrics")[2].decode(), own)[0]

    def connections_of_others(server, expected):
        return wait_until(lambda: read(server)["connection"] == expected * TLS_CONNECTION)

    with tempfile.TemporaryDirectory() as folder, \
         TlsServer(folder, "--max-request-memory", 1 << 10, "--enable-metrics") as server:
        trust = ssl.create_default_context(cafile=server.certificate)

        def hold(number):
            held = [trust.wrap_socket(socket.create_connection(("127.0.0.1", server.port)), server_hostname="127.0.0.1")
                    for _ in range(number)]
            for connection in held:  # a part of a record, for which the server has to keep a buffer
                os.write(connection.fileno(), b"\x17\x03\x03\x40\x00" + bytes(16000))
            return held

        check("no connection of others", connections_of_others(server, 0), read(server))
        first = hold(20)  # with what the process allocates once
        check("the first connections are counted", connections_of_others(server, 20), read(server))
        before = resident_bytes(server)
        held = hold(count)
        check("each connection is counted", connections_of_others(server, 20 + count), read(server))
        each = (resident_bytes(server) - before) / count
        check("a connection takes no more than is counted", TLS_CONNECTION / 3 < each <= TLS_CONNECTION, each)
        for connection in first + held:
            connection.close()
        check("nothing is counted afterwards", wait_until(lambda: not any(read(server).values())), read(server))
        check("exit code", server.stop() == 0, server.text()[-2000:])


def main():
    check_limit()
    check_clients()
    check_tls()
    check_address_space()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
