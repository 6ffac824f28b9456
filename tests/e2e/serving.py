"""Holds a `hadal serve` process and the smallest client for it, which the end-to-end tests of the server share. It needs
only the standard library."""
import contextlib
import http.client
import json
import os
import pathlib
import resource
import signal
import socket
import ssl
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = os.environ.get("HADAL_BINARY", str(ROOT / "build/cpu-release/hadal"))
TINY = ROOT / "models/hadal-tiny"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def limits_of_process(descriptors, address_space):
    """Returns what sets the limits in the new process; None without any."""
    limits = {resource.RLIMIT_NOFILE: descriptors, resource.RLIMIT_AS: address_space}

    def apply():
        for kind, limit in limits.items():
            if limit is not None:
                resource.setrlimit(kind, (limit, limit))

    return apply if descriptors is not None or address_space is not None else None


class Server:
    """`with Server("--max-total-tokens", 1024) as server:` runs a ready server and ends it by SIGTERM."""

    def __init__(self, *flags, model=TINY, ready_s=120, env=None, descriptors=None, address_space=None):
        """`descriptors` is the largest number of descriptors that the process may have open, and `address_space` is
        its memory in bytes. By default neither has a limit."""
        self.port = free_port()
        self.log = tempfile.NamedTemporaryFile(prefix="hadal-serve-", suffix=".log", mode="w+", errors="replace")
        command = [BIN, "serve", "--model-path", model, "--port", self.port, *flags]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT, env={**os.environ, **(env or {})},
                                        preexec_fn=limits_of_process(descriptors, address_space))
        deadline = time.monotonic() + ready_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.text()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/health")[0] == 200:
                    return
            time.sleep(0.05)
        self.process.kill()
        raise RuntimeError(f"not ready after {ready_s} s:\n{self.text()}")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.stop()
        self.log.close()

    def text(self):
        """Returns everything that the server has printed."""
        with open(self.log.name, encoding="utf-8", errors="replace") as log:
            return log.read()

    def stop(self, timeout=120):
        """Ends the server as an operator would, and returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError(f"still running {timeout} s after SIGTERM:\n{self.text()}") from None

    def connect(self, timeout=300):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=300):
        """Sends one request on its own connection; returns (status, headers, body bytes)."""
        connection = self.connect(timeout)
        try:
            if isinstance(body, (dict, list)):
                body, headers = json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def post(self, path, body, timeout=300):
        """Returns (status, parsed JSON)."""
        status, _, answer = self.request("POST", path, body, timeout=timeout)
        return status, json.loads(answer)

    def events(self, path, body, timeout=300):
        """Yields the parsed events of a streamed answer; the last is the string "[DONE]"."""
        connection = self.connect(timeout)
        try:
            connection.request("POST", path, body=json.dumps(body), headers={"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}: {answer.read()!r}")
            for line in answer:
                line = line.strip()
                if line.startswith(b"data: "):
                    data = line[6:].decode()
                    yield data if data == "[DONE]" else json.loads(data)
        finally:
            connection.close()

    def load(self):
        """Returns the first (and only) entry of /get_load."""
        load = json.loads(self.request("GET", "/get_load")[2])
        return load[0] if isinstance(load, list) else load


class TlsServer(Server):
    """Serves HTTPS with a certificate of its own, and trusts nothing else."""

    def __init__(self, folder, *flags):
        key, self.certificate = f"{folder}/key.pem", f"{folder}/cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key, "-out",
                        self.certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
                       check=True, capture_output=True)
        super().__init__("--ssl-keyfile", key, "--ssl-certfile", self.certificate, *flags)

    def connect(self, timeout=300):
        trust = ssl.create_default_context(cafile=self.certificate)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=trust)
