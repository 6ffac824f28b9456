#!/usr/bin/env python3
"""Tests what each client may do at `hadal serve`: keys, browsers, methods and the bodies of clients without a key. It uses
the real binary and the bundled model."""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from counting import check, finish
from serving import BIN, TINY, Server

def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def status(server, method, path, headers=None, body=None):
    return server.request(method, path, body, headers)[0]


def raw(server, wire):
    """Sends bytes and returns the first part of the answer, while the request is still incomplete."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(wire)
        return client.recv(65536)


def key_file():
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/keys"

        def write(text):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

        def after_hangup(line):
            count = server.text().count(line)
            server.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + 60
            while server.text().count(line) == count and time.monotonic() < deadline:
                time.sleep(0.02)

        write("# clients\nalice secret-a\nsecret-b\n")
        with Server("--api-key-file", path, "--enable-metrics", env={"HADAL_ADMIN_API_KEY": "root"}) as server:
            check("named key", status(server, "GET", "/model_info", bearer("secret-a")) == 200)
            check("key without a name", status(server, "GET", "/model_info", bearer("secret-b")) == 200)
            check("wrong key", status(server, "GET", "/model_info", bearer("secret-c")) == 401)
            check("admin key", status(server, "POST", "/flush_cache", bearer("root")) == 200)
            check("not the admin key", status(server, "POST", "/flush_cache", bearer("secret-a")) == 401)
            write("alice new\n")
            after_hangup("keys read again")
            check("new key", status(server, "GET", "/model_info", bearer("new")) == 200)
            check("old key", status(server, "GET", "/model_info", bearer("secret-a")) == 401)
            write("one two three\n")
            after_hangup("keys not changed")
            check("a broken file changes nothing", status(server, "GET", "/model_info", bearer("new")) == 200)
            head = "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n"
            check("401 before the body", b" 401 " in raw(server, (head + "\r\n").encode()))
            answer = raw(server, (head + "Expect: 100-continue\r\n\r\n").encode())
            check("401 before 100 Continue", answer.startswith(b"HTTP/1.1 401"), answer)
            answer = raw(server, (head + "Authorization: Bearer new\r\nExpect: 100-continue\r\n\r\n").encode())
            check("100 Continue with a key", answer.startswith(b"HTTP/1.1 100"), answer)
            answer = raw(server, b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n")
            check("404 before the body", answer.startswith(b"HTTP/1.1 404"), answer)
            page = server.request("GET", "/metrics")[2].decode()
            samples = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("sglang:http_"))
            counts = {name.split('reason="')[1].split('"')[0]: int(value) for name, value in samples.items()
                      if "reason=" in name}
            check("refusals are counted", counts["key"] == 5 and counts["path"] == 1 and not counts["bodies"], counts)
            check("no body is held", [value for name, value in samples.items() if "http_body_bytes" in name] == ["0"],
                  samples)
            check("the longest tasks are told", all(float(value) > 0 for name, value in samples.items()
                                                    if 'task_seconds{' in name and 'thread="0"' in name), samples)
            check("the label is no path", 'model_name="hadal-tiny"' in page and str(TINY) not in page, page)
            time.sleep(0.3)
            log = server.text()
            check("the log names the key's owner", " key=alice " in log, log)
            check("the log has no key", "secret-" not in log, log)


def administration():
    """With a file of several keys and without an administrator's key, no client is an administrator; each key
    aborts its own requests."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("alice secret-a\nbob secret-b\n")
        keys.flush()
        with Server("--api-key-file", keys.name) as server:
            for path in ("/flush_cache", "/pause_generation", "/start_profile"):
                code, _, answer = server.request("POST", path, {}, bearer("secret-a"))
                check(f"{path} without an admin key", code == 403 and b"--admin-api-key" in answer, (code, answer))
            code, _, answer = server.request("POST", "/abort_request", {"abort_all": True}, bearer("secret-a"))
            check("abort_all without an admin key", code == 403 and b"--admin-api-key" in answer, (code, answer))
            body = {"text": "Once", "rid": "job", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
            answers = {}

            def ask(key):
                answers[key] = server.request("POST", "/generate", body, bearer(key))

            def running():
                return json.loads(server.request("GET", "/get_load", None, bearer("secret-a"))[2])[0]["num_reqs"]

            threads = [threading.Thread(target=ask, args=(key,)) for key in ("secret-a", "secret-b")]
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + 60
            while running() != 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            code, _, answer = server.request("POST", "/generate", body, bearer("secret-b"))
            check("a key cannot use its own id twice", code == 400 and b"rid 'job' is in use" in answer, answer)
            code, _, answer = server.request("POST", "/abort_request", {"rid": "job"}, bearer("secret-a"))
            check("a key aborts one request, its own", code == 200 and json.loads(answer)["num_requests"] == 1, answer)
            threads[0].join()
            check("another key's request goes on", running() == 1)
            server.request("POST", "/abort_request", {"rid": "job"}, bearer("secret-b"))
            threads[1].join()
            infos = [json.loads(answers[key][2])["meta_info"] for key in ("secret-a", "secret-b")]
            check("both were aborted", [info["finish_reason"]["type"] for info in infos] == ["abort"] * 2, infos)
            check("both see their own id", [info["id"] for info in infos] == ["job"] * 2, infos)


def browsers():
    with Server("--allowed-hosts", "box.example") as server:
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        check("rebinding", status(server, "GET", "/model_info", rebound) == 403)
        check("no browser, any host", status(server, "GET", "/model_info", {"Host": "evil.example"}) == 200)
        own = {"Host": "box.example:1", "Origin": "http://box.example:1"}
        check("allowed host", status(server, "POST", "/flush_cache", own) == 200)
        for site, expected in (("cross-site", 403), ("same-site", 403), ("unknown", 403), ("same-origin", 200),
                               ("none", 200)):
            check(site, status(server, "POST", "/flush_cache", {"Sec-Fetch-Site": site}) == expected)
        check("GET changes nothing", status(server, "GET", "/flush_cache") == 405)
        code, _, answer = server.request("POST", "/generate", {"k" * 8_000_000: 1})
        check("echo of a long name is cut", code == 400 and len(answer) < 4000, (code, len(answer)))
        code, _, answer = server.request("GET", "/" + "a" * 30_000)
        check("echo of a long path is cut", code == 404 and len(answer) < 4000, (code, len(answer)))
    with Server("--allow-get-admin") as server:
        check("GET where it is allowed", status(server, "GET", "/flush_cache") == 200)
        image = {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64)", "Referer": "http://elsewhere.example/"}
        check("an image on a page flushes nothing", status(server, "GET", "/flush_cache", image) == 403)
        own = {**image, "Sec-Fetch-Site": "none"}
        check("a browser's address bar may", status(server, "GET", "/flush_cache", own) == 200)


def duplicates(server):
    head = "GET /model_info HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\r\n"
    for first, second in (("k", "wrong"), ("wrong", "k"), ("k", "k")):
        answer = raw(server, head.format(f"{first}\r\nauthorization: Bearer {second}").encode())
        check(f"keys {first} and {second}", answer.startswith(b"HTTP/1.1 400") and
              b"more than one Authorization header" in answer, answer)


def half_closed(server):
    """A client that sends nothing more gets the answers to its complete requests; an incomplete request is
    dropped."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"GET /model_info HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer k\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
        check("a complete answer reaches a half-closed client", answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"}"),
              answer)
    body = json.dumps({"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}})
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(f"POST /generate HTTP/1.1\r\nHost: x\r\nX-Request-Id: half\r\nAuthorization: Bearer k\r\n"
                       f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = client.recv(65536)
        client.shutdown(socket.SHUT_WR)
        while data := client.recv(65536):
            answer += data
        check("a half-closed client's stream ends", answer.startswith(b"HTTP/1.1 200") and b"[DONE]" not in answer, answer[-200:])
    deadline = time.monotonic() + 60
    while "status=499" not in server.text() and time.monotonic() < deadline:
        time.sleep(0.02)
    check("and is logged as a client that left", any("status=499" in line and "id=half" in line
                                                     for line in server.text().splitlines()), server.text())


def access_log():
    """A client without a key cannot fill the log; a client with a key has a line for each request."""
    strangers, own = 20_000, 300
    with Server("--api-key", "k") as server:
        duplicates(server)
        half_closed(server)
        before = server.text().count("path=/health ")
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            probes = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * strangers
            sender = threading.Thread(target=client.sendall, args=(probes,))
            sender.start()
            answers, rest = 0, b""
            while answers < strangers:
                data = rest + client.recv(65536)
                answers += data.count(b"HTTP/1.1 200")
                rest = data[-11:]
            sender.join()
        connection = server.connect()
        for _ in range(own):
            connection.request("GET", "/get_load", headers=bearer("k"))
            connection.getresponse().read()
        connection.close()
        server.stop()
        log = server.text()
        lines = log.count("path=/health ") - before
        left_out = sum(int(line.split("count=")[1].split()[0]) for line in log.splitlines() if "http_lines_left_out" in line)
        check("every probe has a line or is counted", lines + left_out == strangers, (lines, left_out))
        check("a hundred lines a second at most", lines < strangers / 2 and left_out > 0, (lines, left_out))
        check("a client with a key has all of its lines", log.count("path=/get_load ") == own, log.count("path=/get_load "))


def sources():
    for flags, variables, code in ((["--api-key", "a"], {"HADAL_API_KEY": "b"}, 2), ([], {"HADAL_API_KEY": ""}, 2),
                                   (["--api-key-file", "/nowhere"], {}, 1), (["--api-key-file", "/x", "--api-key", "k"], {}, 2)):
        done = subprocess.run([BIN, "serve", "--model-path", TINY, *flags], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **variables}, check=False)
        check(f"{flags} {variables}", done.returncode == code and "key" in done.stderr, (done.returncode, done.stderr))


def main():
    key_file()
    administration()
    browsers()
    access_log()
    sources()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
