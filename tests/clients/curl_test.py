#!/usr/bin/env python3
"""Runs curl against `hadal serve`, as the README and a shell script use it: plain and streamed requests, files, keys,
TLS with a self-signed certificate, HTTP/1.0, keep-alive, uploads with Expect and a download that is cut off."""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from checks import ROOT, Server, check, check_equal, finish, questions, run, wait_until

JSON = ["-H", "Content-Type: application/json"]


def curl(*words, stdin=None, timeout=120):
    """Returns (exit code, stdout, stderr)."""
    done = subprocess.run(["curl", "-sS", *map(str, words)], input=stdin, capture_output=True, text=True,
                          timeout=timeout, check=False)
    return done.returncode, done.stdout, done.stderr


def events(text):
    return [line[6:] for line in text.splitlines() if line.startswith("data: ")]


class TlsServer(Server):
    """Serves over TLS. Its client checks readiness over TLS too."""

    def __init__(self, folder, *flags):
        self.certificate = folder / "cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-keyout", folder / "key.pem", "-out", self.certificate, "-days", "2", "-subj",
                        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True,
                       capture_output=True)
        super().__init__("--ssl-keyfile", folder / "key.pem", "--ssl-certfile", self.certificate, *flags)

    def request(self, method, path, body=None, headers=None, timeout=300):
        code, out, _ = curl("--cacert", self.certificate, "-o", "/dev/null", "-w", "%{http_code}",
                            f"https://localhost:{self.port}{path}")
        return int(out) if code == 0 else 0, {}, b""


def chat(base):
    question = questions("copy", 1)[0]
    body = {"model": "tiny", "messages": question["messages"], "temperature": 0}
    code, out, err = curl(f"{base}/v1/chat/completions", *JSON, "-d", json.dumps(body))
    check_equal("exit code", (code, err), (0, ""))
    check_equal("answer", json.loads(out)["choices"][0]["message"]["content"], question["answer"])
    code, out, _ = curl("-N", f"{base}/v1/chat/completions", *JSON, "-d", json.dumps({**body, "stream": True}))
    shown = events(out)
    check_equal("streamed", "".join(json.loads(event)["choices"][0]["delta"].get("content") or ""
                                    for event in shown[:-1]), question["answer"])
    check_equal("the end", (code, shown[-1], out[-2:]), (0, "[DONE]", "\n\n"))


def generate(base):
    body = json.dumps({"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 16}})
    _, out, _ = curl("-X", "POST", f"{base}/generate", *JSON, "-d", body)
    whole = json.loads(out)
    check_equal("tokens", whole["meta_info"]["completion_tokens"], 16)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(body)
        file.flush()
        _, out, _ = curl(f"{base}/generate", *JSON, "--data-binary", f"@{file.name}")
    check_equal("from a file", json.loads(out)["text"], whole["text"])
    _, out, _ = curl(f"{base}/generate", *JSON, "-d", "@-", stdin=body)
    check_equal("from stdin", json.loads(out)["text"], whole["text"])
    _, out, _ = curl("-N", f"{base}/generate", *JSON, "-d", json.dumps({**json.loads(body), "stream": True}))
    shown = events(out)
    check_equal("streamed", (json.loads(shown[-2])["text"], shown[-1]), (whole["text"], "[DONE]"))
    _, out, _ = curl("--http1.0", f"{base}/generate", *JSON, "-d", body)
    check_equal("HTTP/1.0", json.loads(out)["text"], whole["text"])
    code, out, _ = curl("--http1.0", "-N", f"{base}/generate", *JSON, "-d", json.dumps({**json.loads(body),
                                                                                       "stream": True}))
    check_equal("HTTP/1.0 streamed", (code, events(out)[-1:]), (0, ["[DONE]"]))
    # The body is larger than what curl sends without Expect: 100-continue.
    large = json.dumps({"text": "a b " * 3000, "sampling_params": {"temperature": 0, "max_new_tokens": 2}})
    code, out, _ = curl(f"{base}/generate", *JSON, "-H", "Expect: 100-continue", "-d", "@-", stdin=large)
    check("Expect: 100-continue", code == 0 and ("text" in out or "maximum" in out or "4096" in out), out)
    code, out, _ = curl(f"{base}/generate", *JSON, "-H", "Transfer-Encoding: chunked", "-d", "@-", stdin=body)
    check("a chunked upload", code == 0 and json.loads(out).get("text") == whole["text"], out)


def shell_habits(base):
    code, out, _ = curl("-o", "/dev/null", "-w", "%{http_code}", f"{base}/health")
    check_equal("health", (code, out), (0, "200"))
    code, out, _ = curl("-I", f"{base}/health")
    check("HEAD", code == 0 and out.startswith("HTTP/1.1 200"), out)
    code, out, _ = curl(f"{base}/v1/models")
    check_equal("models", json.loads(out)["data"][0]["id"], "tiny")
    code, out, err = curl("--fail", f"{base}/v1/nothing")
    check_equal("--fail on 404", code, 22)
    code, out, _ = curl("-w", "\n%{http_code}", f"{base}/v1/chat/completions", *JSON, "-d", "{not json")
    check("bad json", out.endswith("\n400") and "error" in json.loads(out.rsplit("\n", 1)[0]), out)
    code, out, _ = curl("-w", "\n%{http_code}", "-X", "DELETE", f"{base}/v1/chat/completions")
    check("a method it has not", out.endswith("\n405"), out)
    _, out, _ = curl("-X", "POST", f"{base}/flush_cache", "-o", "/dev/null", "-w", "%{http_code}")
    check_equal("flush", out, "200")
    _, out, _ = curl("-w", " %{num_connects}", f"{base}/health", f"{base}/health", "-o", "/dev/null", "-o", "/dev/null")
    check_equal("one connection for two requests", out.split(), ["1", "0"])
    _, out, _ = curl("-i", "-X", "OPTIONS", f"{base}/v1/chat/completions", "-H", "Origin: http://page.example", "-H",
                     "Access-Control-Request-Method: POST", "-H", "Access-Control-Request-Headers: content-type")
    check("preflight", "access-control-allow-origin" in out.lower(), out)


def documented_commands():
    """Returns every `curl …` of the README and the docs as (file, words): a line that begins with `curl`, to the end of its
    quotes and continuations, without the command into which it is piped."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        lines = iter(path.read_text(encoding="utf-8").splitlines())
        for line in lines:
            command = line.strip().removeprefix("$ ")
            if not command.startswith("curl "):
                continue
            while command.endswith("\\") or command.replace("\\'", "").count("'") % 2:
                command = command.removesuffix("\\") + "\n" + next(lines)
            words = shlex.split(command)[1:]
            yield path.name, words[:words.index("|")] if "|" in words else words


def documented(base):
    """The commands that the documentation shows work unchanged except for host and port."""
    commands = list(documented_commands())
    check("the README shows curl", any(file == "README.md" for file, _ in commands), commands)
    for file, words in commands:
        words = [re.sub(r"(http://)?(localhost|127\.0\.0\.1):30000", base, word) for word in words]
        if not any(word.startswith(base) for word in words):
            continue
        code, out, err = curl("--fail-with-body", *words)
        check(f"{file}: curl {' '.join(words)}", code == 0, f"{code} {out} {err}")
        if "chat/completions" in " ".join(words) and code == 0:
            check(f"{file}: an answer", events(out)[-1:] == ["[DONE]"] or json.loads(out)["choices"], out)


def cut_off(server, base):
    body = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}, "stream": True}
    code, out, _ = curl("-N", "--max-time", "1", f"{base}/generate", *JSON, "-d", json.dumps(body))
    check("it was under way", code == 28 and events(out), (code, out[:200]))
    check("nothing runs", wait_until(lambda: server.load()["num_reqs"] == 0), server.load())


def tls():
    with tempfile.TemporaryDirectory(prefix="hadal-clients-") as name:
        folder = pathlib.Path(name)
        with TlsServer(folder, "--served-model-name", "tiny", "--api-key", "secret") as server:
            base = f"https://localhost:{server.port}"
            known = ["--cacert", server.certificate]
            body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0,
                               "max_tokens": 8, "stream": True})
            check_equal("an unknown certificate", curl(f"{base}/health")[0], 60)
            check_equal("-k", curl("-k", f"{base}/health")[0], 0)
            _, out, _ = curl(*known, "-w", "%{http_code}", "-o", "/dev/null", f"{base}/v1/models")
            check_equal("no key", out, "401")
            code, out, err = curl("-N", *known, f"{base}/v1/chat/completions", *JSON, "-H", "Authorization: Bearer secret",
                                  "-d", body)
            check_equal("a stream over TLS", (code, err, events(out)[-1:]), (0, "", ["[DONE]"]))
            check_equal("plain HTTP is refused", curl(f"http://127.0.0.1:{server.port}/health")[0] != 0, True)
            check_equal("TLS 1.3", curl(*known, "--tlsv1.3", f"{base}/health")[0], 0)
            check_equal("TLS 1.1 is refused", curl(*known, "--tls-max", "1.1", f"{base}/health")[0] != 0, True)
            check_equal("exit code", server.stop(), 0)


def main():
    with Server("--served-model-name", "tiny", "--enable-metrics") as server:
        base = f"http://127.0.0.1:{server.port}"
        for claim in (chat, generate, shell_habits, documented):
            run(claim, base)
        run(cut_off, server, base)
        check_equal("exit code", server.stop(), 0)
    run(tls)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
