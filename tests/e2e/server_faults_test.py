#!/usr/bin/env python3
"""Tests `hadal serve` under what operators and clients may do to it: TLS, schedules, a full queue, a full disk, a drain,
clients that vanish, grammars and batches. It uses the real binary, real sockets and the bundled model."""
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from counting import check, finish
from serving import BIN, TINY, Server, TlsServer, free_port

LONG = {"text": "Once upon a time", "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}}
SHORT = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 16}}
SCHEMA = {"type": "object", "properties": {"size": {"enum": [1, 2, 3]}, "ok": {"type": "boolean"}},
          "required": ["size", "ok"], "additionalProperties": False}


def wait_until(condition, timeout=120):
    deadline = time.monotonic() + timeout
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def all_at_once(count, work):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tls():
    with tempfile.TemporaryDirectory() as folder, TlsServer(folder) as server:
        status, answer = server.post("/generate", SHORT)
        check("generate over TLS", status == 200 and answer["meta_info"]["completion_tokens"] == 16, answer)
        events = list(server.events("/generate", {**SHORT, "stream": True}))
        check("stream over TLS", events[-1] == "[DONE]" and events[-2]["text"] == answer["text"], events[-2:])
        check("the log says https", f"https://127.0.0.1:{server.port}" in server.text(), server.text())
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        with plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                check("no answer without TLS", b"HTTP/1.1 200" not in plain.recv(4096))
        check("still serves", server.request("GET", "/health")[0] == 200)
        check("exit code", server.stop() == 0, server.text())


def grammars(server):
    def text_of(**grammar):
        status, answer = server.post("/generate", {"text": "Answer:", "sampling_params": {
            "temperature": 1.3, "max_new_tokens": 300, **grammar}})
        check(f"{list(grammar)} ends", status == 200 and answer["meta_info"]["finish_reason"]["type"] == "stop", answer)
        return answer.get("text", "")

    for schema in (SCHEMA, json.dumps(SCHEMA)):
        value = json.loads(text_of(json_schema=schema))
        check("json_schema", value["size"] in (1, 2, 3) and isinstance(value["ok"], bool) and len(value) == 2, value)
    text = text_of(regex=r"(yes|no), [0-9]{3}")
    check("regex", re.fullmatch(r"(yes|no), [0-9]{3}", text), text)
    text = text_of(ebnf='root ::= "(" root ")" | [ab] [ab]')
    check("ebnf", re.fullmatch(r"(\(*)[ab]{2}(\)*)", text) and text.count("(") == text.count(")"), text)
    for form, fits in (({"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
                        lambda value: set(value) == {"size", "ok"}),
                       ({"type": "json_object"}, lambda value: isinstance(value, dict))):
        # The model is small enough to repeat itself in a string until it is cut off, so several answers are requested.
        status, answer = server.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Hello"}], "response_format": form, "max_tokens": 600, "n": 8, "seed": 1})
        check(f"chat {form['type']} status", status == 200, answer)
        ended = [choice["message"]["content"] for choice in answer["choices"] if choice["finish_reason"] == "stop"]
        check(f"chat {form['type']}", ended and all(fits(json.loads(text)) for text in ended), answer)
    status, error = server.post("/generate", {"text": "a", "sampling_params": {"json_schema": {"uniqueItems": True}}})
    check("the keyword is named", status == 400 and "uniqueItems" in error["message"], error)
    # Rows with and without a grammar share one batch.
    texts = [None] * 12

    def one(i):
        params = {"temperature": 0, "max_new_tokens": 16}
        if i % 2:
            params.update(regex="x[0-9]{4}", temperature=1)
        texts[i] = server.post("/generate", {"text": SHORT["text"], "sampling_params": params})[1]["text"]

    all_at_once(len(texts), one)
    check("beside grammars nothing changes", len(set(texts[::2])) == 1, texts)
    check("beside others grammars hold", all(re.fullmatch("x[0-9]{4}", text) for text in texts[1::2]), texts)


def batches(server):
    one = server.post("/generate", SHORT)[1]["text"]
    status, answers = server.post("/generate", {"text": [SHORT["text"], "Two", SHORT["text"]],
                                                "sampling_params": SHORT["sampling_params"]})
    check("batch", status == 200 and [answer["text"] == one for answer in answers] == [True, False, True], answers)
    params = {"temperature": 1, "max_new_tokens": 12, "n": 3, "sampling_seed": 5}
    status, answers = server.post("/generate", {"text": ["One", "Two"], "sampling_params": params})
    check("n answers to each prompt of a batch", status == 200 and len(answers) == 6, answers)
    check("choices differ", len({answer["text"] for answer in answers[:3]}) > 1, answers)
    ids = [answer["meta_info"]["id"] for answer in answers]
    check("ids differ", len(set(ids)) == 6, ids)
    again = server.post("/generate", {"text": ["One", "Two"], "sampling_params": params})[1]
    check("a seed repeats", [a["text"] for a in again] == [a["text"] for a in answers], (again, answers))
    events = list(server.events("/generate", {"text": ["One", "Two"], "stream": True, "sampling_params": params}))
    last = {event["index"]: event["text"] for event in events[:-1]}
    check("streamed batch", events[-1] == "[DONE]" and [last[i] for i in range(6)] == [a["text"] for a in answers], last)
    check("n is bounded", server.post("/generate", {"text": "a", "sampling_params": {"n": 100000}})[0] == 400)


def schedules():
    texts = {}
    for policy in ("fcfs", "lpm", "lof", "priority"):
        with tempfile.NamedTemporaryFile() as record, \
                Server("--schedule-policy", policy, "--max-running-requests", 4, "--record-plans", record.name) as server:
            answers = [None] * 12

            def ask(i):
                answers[i] = server.post("/generate", {  # noqa: B023 (joined before the next round)
                    "text": f"The {i % 3} and the", "priority": i, "sampling_params": {
                        "temperature": 0, "max_new_tokens": 4 + 3 * (i % 4), "ignore_eos": True}})
            all_at_once(len(answers), ask)
            check(f"{policy} answers", all(status == 200 for status, _ in answers), answers)
            check(f"{policy} lengths", [a["meta_info"]["completion_tokens"] for _, a in answers] ==
                  [4 + 3 * (i % 4) for i in range(12)], answers)
            texts[policy] = [answer["text"] for _, answer in answers]
            check(f"{policy} ends", server.stop() == 0, server.text())
            recorded(policy, record.name)
    check("the order of work changes no answer", all(said == texts["fcfs"] for said in texts.values()), texts)


def recorded(policy, path):
    calls = [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]
    check(f"{policy} record begins with options", calls[0]["call"] == "options" and
          [call["call"] for call in calls].count("options") == 1, calls[0])
    added = [call["id"] for call in calls if call["call"] == "add"]
    ended = [outcome[0] for call in calls if call["call"] == "complete" for outcome in call["outcomes"] if outcome[2]]
    check(f"{policy} record has every request once", len(added) == 13 and sorted(added) == sorted(ended), (added, ended))


def queue_full():
    with Server("--max-running-requests", 1, "--max-queued-requests", 1) as server:
        running = server.events("/generate", LONG)
        next(running)
        waits = []
        waiter = threading.Thread(target=lambda: waits.append(server.post("/generate", SHORT)))
        waiter.start()
        check("one waits", wait_until(lambda: server.load()["num_waiting_reqs"] == 1), server.load())
        for path, body in (("/generate", SHORT), ("/v1/completions", {"prompt": "a"})):
            status, headers, answer = server.request("POST", path, body)
            check(f"{path} is refused", status == 503 and int(headers["Retry-After"]) >= 1, (status, answer))
        running.close()  # the client leaves, so the waiting request gets its turn
        waiter.join()
        check("the waiting one is answered", waits[0][0] == 200, waits)


def drain():
    server = Server()
    running = server.events("/generate", {**LONG, "sampling_params": {**LONG["sampling_params"], "max_new_tokens": 1500}})
    next(running)
    idle = server.connect()
    idle.request("GET", "/health")
    idle.getresponse().read()
    server.process.send_signal(signal.SIGTERM)
    check("health reports the drain", wait_until(lambda: server.request("GET", "/health")[0] == 503))
    status, headers, answer = server.request("POST", "/generate", SHORT)
    check("new work is refused", status == 503 and headers["Retry-After"], answer)
    idle.request("POST", "/generate", json.dumps(SHORT))
    check("on open connections too", idle.getresponse().status == 503)
    idle.close()
    rest = list(running)
    check("the running one is finished", rest[-1] == "[DONE]" and rest[-2]["meta_info"]["completion_tokens"] == 1500,
          rest[-2:])
    check("exit code", server.process.wait(60) == 0, server.text())


def drain_of_workers():
    """Bodies that take workers longer than a drain may last are cancelled and answered, as are bodies that wait behind
    others."""
    call = "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    large = json.dumps({"text": call * 100000, "tools": tools, "tool_call_parser": "deepseekv31"}, ensure_ascii=False).encode()
    properties = {f"p{i}": {} for i in range(100)}
    slow = {**SHORT, "sampling_params": {"max_new_tokens": 4, "json_schema": json.dumps(
        {"type": "object", "minProperties": 50, "maxProperties": 60, "properties": properties})}}
    server = Server("--drain-timeout", "0.2", "--enable-metrics")
    answers = []

    def ask(path, body):
        connection = server.connect()
        connection.request("POST", path, body)
        answer = connection.getresponse()
        answers.append((path, answer.status, answer.headers["Retry-After"], answer.read()))
        connection.close()

    requests = [("/parse_function_call", large)] * 6 + [("/generate", json.dumps(slow))] * 2
    threads = [threading.Thread(target=ask, args=request) for request in requests]
    for thread in threads:
        thread.start()

    def body_bytes():
        return int(re.search(r'request_memory_bytes\{[^}]*kind="body"\} (\d+)', server.request("GET", "/metrics")[2].decode())[1])

    check("workers have work", wait_until(lambda: body_bytes() >= 5 * len(large)), body_bytes())
    server.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join()
    check("each is answered", len(answers) == len(requests), answers)
    check("with 200, or 503 and Retry-After", all(status == 200 or status == 503 and retry for _, status, retry, _ in answers),
          [(path, status, retry, text[:200]) for path, status, retry, text in answers])
    check("some were cancelled", any(status == 503 for path, status, _, _ in answers if path != "/generate"), answers)
    check("exit code with work on workers", server.process.wait(60) == 0, server.text()[-2000:])
    check("nothing was unanswered", "http_request_unanswered" not in server.text(), server.text()[-2000:])


def paused_drain():
    server = Server("--drain-timeout", "600")
    check("paused", server.post("/pause_generation", {})[0] == 200)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(server.post("/generate", SHORT)))
    waiting.start()
    check("it waits", wait_until(lambda: server.load()["num_reqs"] == 1))
    server.process.send_signal(signal.SIGTERM)
    waiting.join()
    check("a drain resumes a paused engine", answers[0][0] == 200, answers)
    check("exit code after the pause", server.process.wait(60) == 0, server.text())


def unread_stderr():
    """The reader of the log has stopped: the pipe is full before the server is ready."""
    port = free_port()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"x" * 4096)
    os.set_blocking(write_end, True)
    process = subprocess.Popen([BIN, "serve", "--model-path", TINY, "--port", str(port), "--log-requests",
                                "--decode-log-interval", "1"], stdout=subprocess.DEVNULL, stderr=write_end)
    os.close(write_end)

    def status(method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(method, path, body)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    check("ready with a full stderr", wait_until(lambda: status("GET", "/health") == 200))
    answers = [status("POST", "/generate", json.dumps(SHORT)) for _ in range(50)]
    check("answers with a full stderr", answers == [200] * 50, answers)
    process.send_signal(signal.SIGTERM)
    try:
        check("ends with a full stderr", process.wait(60) == 0, process.returncode)
    except subprocess.TimeoutExpired:
        process.kill()
        check("ends with a full stderr", False, "killed")
    os.close(read_end)


def full_disk():
    """No log line can be written."""
    port = free_port()
    with open("/dev/full", "w", encoding="utf-8") as full:
        process = subprocess.Popen([BIN, "serve", "--model-path", TINY, "--port", str(port), "--log-requests",
                                    "--decode-log-interval", "1", "--record-plans", "/dev/full"],
                                   stdin=subprocess.DEVNULL, stdout=full, stderr=full)

    def request(method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        try:
            connection.request(method, path, body=body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    try:
        check("starts", wait_until(lambda: process.poll() is None and request("GET", "/health")[0] == 200))
        answers = [request("POST", "/generate", json.dumps(SHORT)) for _ in range(5)]
        check("answers", all(status == 200 for status, _ in answers), answers)
        process.send_signal(signal.SIGTERM)
        check("ends", process.wait(60) == 0, process.returncode)
    finally:
        if process.poll() is None:
            process.kill()


def vanish(server, stage, seed):
    """A client leaves before, inside or after its request, or inside the answer."""
    body = json.dumps(LONG)
    request = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
        if seed % 2:  # a reset instead of an orderly end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if stage == 1:
            client.sendall(request[:random.Random(seed).randrange(len(request))])
        elif stage >= 2:
            client.sendall(request)
        if stage == 3:
            client.recv(1)
        elif stage == 4:
            client.recv(4096)
            client.recv(4096)


def exactly_once(server, name):
    """Two requests on one connection get one answer each."""
    connection = server.connect()
    try:
        for part, length in enumerate((len(name), 11)):
            connection.request("POST", "/generate", json.dumps({
                "text": f"Number {name}", "rid": f"{name}-{part}", "sampling_params": {
                    "max_new_tokens": length, "ignore_eos": True}}))
            answer = json.loads(connection.getresponse().read())
            if (answer["meta_info"]["id"], answer["meta_info"]["completion_tokens"]) != (f"{name}-{part}", length):
                return False
        return True
    finally:
        connection.close()


def vanishing_clients():
    with Server("--max-total-tokens", 16384, "--log-requests", "--log-requests-level", 0) as server:
        good = []
        stayed = [f"{wave}of{i}" for wave in range(2) for i in range(0, 125, 5)]
        for wave in range(2):

            def client(i, wave=wave):
                if i % 5 == 0:
                    good.append(exactly_once(server, f"{wave}of{i}"))
                else:
                    vanish(server, i % 5, i)

            all_at_once(125, client)
        check("those who stayed are answered", good == [True] * 50, good)
        check("nothing runs for those who left", wait_until(lambda: server.load()["num_reqs"] == 0), server.load())
        log = server.text()
        finished = [line.split("rid=")[1].split()[0] for line in log.splitlines() if "request finished" in line]
        asked = [f"{name}-{part}" for name in stayed for part in (0, 1)]
        check("each ends once", sorted(finished) == sorted(asked), (finished, asked))
        check("the cache can be emptied", server.request("POST", "/flush_cache")[0] == 200)
        load = server.load()
        check("no page is held", load["num_tokens"] == 0 and load["num_reqs"] == 0, load)
        # All pages are free, because a request that needs nearly the whole pool fits.
        status, answer = server.post("/generate", {"input_ids": [7] * 3000, "sampling_params": {
            "max_new_tokens": 4, "n": 5, "ignore_eos": True}})
        check("all pages are there", status == 200 and len(answer) == 5, answer)
        check("nothing broke inside", " error " not in server.text(), log[-2000:])


def fatal_signals():
    """A signal that ends the process leaves a line that says so. Sanitizers have handlers and reports of their own."""
    for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT):
        with Server() as server:
            server.process.send_signal(number)
            code = server.process.wait(60)
            if "Sanitizer" in server.text():
                continue
            name = signal.Signals(number).name
            check(f"{name} ends the process", code == -number, code)
            lines = [line for line in server.text().splitlines() if line.startswith("hadal: error: ")]
            wanted = rf"hadal: error: {name}, sent by process {os.getpid()}, in thread \d+, version \d+\.\d+\.\d+"
            check(f"{name} has one line", len(lines) == 1 and re.fullmatch(wanted, lines[0]), server.text()[-2000:])


def main():
    with Server() as server:
        grammars(server)
        batches(server)
    tls()
    schedules()
    queue_full()
    drain()
    drain_of_workers()
    paused_drain()
    unread_stderr()
    full_disk()
    vanishing_clients()
    fatal_signals()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
