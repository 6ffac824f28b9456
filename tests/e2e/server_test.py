#!/usr/bin/env python3
"""Tests `hadal serve` as an operator and a client use it: the real binary, real sockets and the bundled model."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from counting import check, finish
from serving import BIN, TINY, Server, free_port

PROMPT = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 24}}


def run_to_end(*flags, timeout=60):
    return subprocess.run([BIN, "serve", "--model-path", TINY, *map(str, flags)], capture_output=True, text=True,
                          timeout=timeout, check=False)


def answers(server):
    status, whole = server.post("/generate", PROMPT)
    check("generate", status == 200 and whole["meta_info"]["completion_tokens"] > 0, whole)
    events = list(server.events("/generate", {**PROMPT, "stream": True}))
    check("stream ends", events[-1] == "[DONE]" and len(events) > 2, events[-1:])
    check("the stream has the same text", events[-2]["text"] == whole["text"], events[-2])
    texts = [event["text"] for event in events[:-1]]
    check("stream is cumulative", all(later.startswith(text) for text, later in zip(texts, texts[1:])))
    status, batch = server.post("/generate", {"text": ["One", "Two", "Three"], "sampling_params": {"max_new_tokens": 4}})
    check("batch", status == 200 and len(batch) == 3, batch)
    status, again = server.post("/generate", PROMPT)
    check("same text from the cache", again["text"] == whole["text"] and again["meta_info"]["cached_tokens"] > 0, again)


def information(server):
    models = json.loads(server.request("GET", "/v1/models")[2])
    check("models", models["data"][0]["id"] == str(TINY), models)
    info = json.loads(server.request("GET", "/server_info")[2])
    state = info["internal_states"][0]
    check("server_info", info["dp_size"] == 1 and info["port"] == server.port and info["tokenizer_path"] and
          state["memory_usage"]["token_capacity"] > 0 and state["effective_max_running_requests_per_dp"] == 64, info)
    check("server_info KV cache", (info["kv_cache_dtype"], info["kv_cache_scales"], info["kv_record_bytes"]) ==
          ("bfloat16", "none", 1152), info)
    check("model_info", json.loads(server.request("GET", "/get_model_info")[2])["model_path"] == str(TINY))
    check("health_generate", server.request("GET", "/health_generate")[0] == 200)
    check("flush_cache", server.request("POST", "/flush_cache")[0] == 200)
    status, headers, text = server.request("GET", "/metrics")
    check("metrics", status == 200 and b"sglang:generation_tokens_total" in text and
          headers["Content-Type"].startswith("text/plain"))


def bad_requests(server):
    for body in (b"", b"{", b"[]", b'{"text": 1}', b'{"text":"a","sampling_params":{"top_p":9}}', b"\xff\xfe"):
        status, _, answer = server.request("POST", "/generate", body)
        check(f"{body!r} is a 400", status == 400 and json.loads(answer)["object"] == "error", answer)
    check("unknown path", server.request("GET", "/nowhere")[0] == 404)
    check("wrong method", server.request("GET", "/generate")[0] == 405)
    for path, methods in (("/v1/chat/completions", "POST, OPTIONS"), ("/v1/models", "GET, HEAD, OPTIONS"),
                          ("/v1/responses/x", "GET, DELETE, HEAD, OPTIONS")):
        status, headers, _ = server.request("OPTIONS", path, headers={"Access-Control-Request-Method": "POST"})
        check(f"OPTIONS of {path} lists its methods alone", status == 204 and headers.get_all("Allow") == [methods] and
              headers.get_all("Access-Control-Allow-Methods") == [methods], headers)
    check("still well", server.request("GET", "/health")[0] == 200)


def stop_expressions(server):
    """A pattern that needs backtracking is a 400; any other pattern ends and trims the answer, streamed or
    not."""
    for pattern, what in (("(.*)\\1!", "back-references are not supported (\\1 at byte 4)"), ("(?:a{99}){99}", "states"),
                          ("(*NO_JIT)((((a+)+)+)+)!", "verbs are not supported")):
        body = {"text": "One", "sampling_params": {"max_new_tokens": 1200, "ignore_eos": True, "stop_regex": [pattern]}}
        for stream in (False, True):
            status, answer = server.post("/generate", {**body, "stream": stream})
            check(f"{pattern} is a 400", status == 400 and what in json.dumps(answer).replace("\\\\", "\\"), answer)
        status, answer = server.post("/v1/completions", {"model": "x", "prompt": "One", "stop_regex": pattern})
        check(f"{pattern} is a 400 of OpenAI's", status == 400, answer)
    plain = {**PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}}
    whole = server.post("/generate", plain)[1]["text"]
    pattern = re.escape(whole[len(whole) // 3:][:4]) + "+"
    first = re.search(pattern, whole)
    expected = whole[:first.start()]
    body = {**plain, "sampling_params": {**plain["sampling_params"], "stop_regex": [pattern]}}
    status, answer = server.post("/generate", body)
    reason = answer["meta_info"]["finish_reason"]
    check("stop_regex trims", status == 200 and answer["text"] == expected and reason["type"] == "stop" and
          reason["matched"] == first[0], (pattern, answer, whole))
    events = list(server.events("/generate", {**body, "stream": True}))
    check("stop_regex trims a stream", events[-2]["text"] == expected and
          all(expected.startswith(event["text"]) for event in events[:-1]), (pattern, events[-2], whole))


def vanishing_clients(server):
    body = json.dumps({**PROMPT, "stream": True, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}})
    for read in (0, 200):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            if read:
                client.recv(read)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.load()["num_reqs"] > 0:
        time.sleep(0.02)
    check("nothing runs for those who left", server.load()["num_reqs"] == 0, server.load())


def many_streams(server):
    texts = [None] * 48

    def stream(i):
        events = list(server.events("/generate", {**PROMPT, "stream": True}))
        texts[i] = events[-2]["text"] if events[-1] == "[DONE]" else None

    threads = [threading.Thread(target=stream, args=(i,)) for i in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("48 streams say the same", len(set(texts)) == 1 and texts[0], set(texts))


def drain_and_end():
    server = Server()
    events = server.events("/generate", {**PROMPT, "stream": True,
                                         "sampling_params": {"max_new_tokens": 400, "ignore_eos": True}})
    next(events)
    server.process.send_signal(signal.SIGTERM)
    rest = list(events)
    check("SIGTERM lets streams end", rest[-1] == "[DONE]" and
          rest[-2]["meta_info"]["finish_reason"]["type"] == "length", rest[-2:])
    check("exit code after a drain", server.process.wait(60) == 0, server.text())

    server = Server("--drain-timeout", 0.2)
    events = server.events("/generate", {**PROMPT, "stream": True,
                                         "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}})
    next(events)
    server.process.send_signal(signal.SIGTERM)
    rest = list(events)
    check("the drain's end aborts", rest[-2]["meta_info"]["finish_reason"]["type"] in ("abort", "length"), rest[-2:])
    check("exit code after aborts", server.process.wait(60) == 0, server.text())


def start_errors():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run_to_end("--port", taken.getsockname()[1])
        check("port in use", done.returncode == 1 and "in use" in done.stderr, done.stderr)
    done = run_to_end("--ssl-keyfile", "/nowhere.pem")
    check("half of TLS", done.returncode == 2 and "--ssl-certfile" in done.stderr, done.stderr)
    done = run_to_end("--schedule-policy", "dfs-weight")
    check("unknown policy", done.returncode == 2 and "fcfs" in done.stderr, done.stderr)


def nothing_left_after_sigkill():
    port = free_port()
    shm = set(os.listdir("/dev/shm"))
    for _ in range(2):  # the port is free for the second start
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen([BIN, "serve", "--model-path", TINY, "--port", str(port)], stdout=log, stderr=log)
            status = 0
            deadline = time.monotonic() + 60
            while status != 200 and time.monotonic() < deadline and process.poll() is None:
                try:
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                    connection.request("GET", "/health")
                    status = connection.getresponse().status
                except OSError:
                    time.sleep(0.05)
            check("ready on the same port", status == 200)
            process.kill()
            process.wait()
    check("no shared memory left", set(os.listdir("/dev/shm")) <= shm)


def keys():
    with Server("--api-key", "k", "--served-model-name", "tiny") as server:
        check("no key", server.request("GET", "/v1/models")[0] == 401)
        status, _, body = server.request("GET", "/v1/models", headers={"Authorization": "Bearer k"})
        check("key", status == 200 and json.loads(body)["data"][0]["id"] == "tiny", body)
        check("secrets are not told", b'"k"' not in server.request(
            "GET", "/server_info", headers={"Authorization": "Bearer k"})[2])


def main():
    with Server("--enable-metrics", "--log-requests", "--decode-log-interval", 5) as server:
        answers(server)
        information(server)
        bad_requests(server)
        stop_expressions(server)
        vanishing_clients(server)
        many_streams(server)
        log = server.text()
        check("the log names the address", f"http://127.0.0.1:{server.port}" in log)
        check("batch lines", "Prefill batch" in log and "Decode batch" in log)
        check("requests are logged", "request finished" in log)
        check("exit code", server.stop() == 0, server.text())
    keys()
    drain_and_end()
    start_errors()
    nothing_left_after_sigkill()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
