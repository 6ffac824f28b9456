"""Stands in for the Hugging Face hub on loopback, with the faults that a test requests.

A Repository has files and a commit; HubServer serves it as the hub does: the list of files with sizes and checksums, and
/resolve/ with ranges and X-Repo-Commit, X-Linked-Etag and X-Linked-Size. A test sets `fault`, a function that is called for
each request and may answer it in another way. Every request is recorded.
"""
import dataclasses
import hashlib
import http.server
import json
import re
import sys
import threading
import urllib.parse


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclasses.dataclass
class Repository:
    files: dict  # {name: content}
    name: str = "org/name"
    commit: str = "0123456789abcdef0123456789abcdef01234567"

    def is_large(self, name):
        """Tells whether the hub keeps this file in large file storage."""
        return name.endswith(".safetensors")

    def checksum(self, name):
        content = self.files[name]
        return hashlib.sha256(content).hexdigest() if self.is_large(name) else git_sha1(content)

    def sibling(self, name):
        content = self.files[name]
        entry = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
        if self.is_large(name):
            entry["lfs"] = {"sha256": self.checksum(name), "size": len(content), "pointerSize": 135}
        return entry

    def info(self):
        return {"id": self.name, "sha": self.commit, "siblings": [self.sibling(name) for name in self.files],
                "private": False, "gated": False, "tags": [], "downloads": 0, "likes": 0}

    def tree(self):
        """Returns the answer that the hub's Python library requests instead of the list above."""
        entries = []
        for name, content in self.files.items():
            entry = {"type": "file", "oid": git_sha1(content), "size": len(content), "path": name}
            if self.is_large(name):
                entry["lfs"] = {"oid": self.checksum(name), "size": len(content), "pointerSize": 135}
            entries.append(entry)
        return entries


@dataclasses.dataclass
class Request:
    path: str
    headers: dict
    number: int  # how many requests of this path came before

    @property
    def token(self):
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    @property
    def range_begin(self):
        found = re.match(r"bytes=(\d+)-", self.headers.get("range", ""))
        return int(found[1]) if found else 0

    def is_for(self, name):
        return self.path.endswith(f"/{name}")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        hub = self.server.hub
        request = hub.record(self.path, {name.lower(): value for name, value in self.headers.items()})
        try:
            if hub.fault is None or not hub.fault(self, request):
                self.answer_well(hub.repository, request)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer_well(self, repository, request):
        path = urllib.parse.unquote(urllib.parse.urlsplit(request.path).path)
        if path.startswith(f"/api/models/{repository.name}/tree/"):
            return self.send_json(200, repository.tree())
        if path == f"/api/models/{repository.name}" or path in (f"/api/models/{repository.name}/revision/{revision}"
                                                                for revision in ("main", "v1", repository.commit)):
            return self.send_json(200, repository.info())
        found = re.fullmatch(rf"/{re.escape(repository.name)}/resolve/(?:main|v1|{repository.commit})/(.+)", path)
        if not found or found[1] not in repository.files:
            return self.send_json(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        return self.send_file(repository, found[1], request)

    def send_json(self, status, value, headers=()):
        self.send_bytes(status, json.dumps(value).encode(), {"Content-Type": "application/json", **dict(headers)})

    def send_bytes(self, status, body, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def hub_headers(self, repository, name):
        checksum = repository.checksum(name)
        headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{checksum}"', "Accept-Ranges": "bytes"}
        if repository.is_large(name):
            headers |= {"X-Linked-Etag": f'"{checksum}"', "X-Linked-Size": str(len(repository.files[name]))}
        return headers

    def send_file(self, repository, name, request, content=None, cut_at=None, headers=None):
        """Sends a file from where the request's range begins. If `cut_at` is given, closes the connection after that
        many bytes."""
        content = repository.files[name] if content is None else content
        begin = request.range_begin
        if begin >= len(content) > 0:
            return self.send_bytes(416, b"", {"Content-Range": f"bytes */{len(content)}"})
        headers = self.hub_headers(repository, name) if headers is None else headers
        if begin:
            headers = {**headers, "Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
        body = content[begin:]
        if cut_at is None or cut_at >= len(body):
            return self.send_bytes(206 if begin else 200, body, headers)
        self.send_response(206 if begin else 200)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut_at])
        self.close_connection = True
        return None


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # clients may close connections as they like
            super().handle_error(request, client_address)


class HubServer:
    """with HubServer(repository) as hub: hub.url, hub.requests, hub.fault"""

    def __init__(self, repository, fault=None, host="127.0.0.1"):
        self.repository = repository
        self.fault = fault  # fault(handler, request) returns whether it has answered
        self.requests = []
        self._lock = threading.Lock()
        self._server = Server((host, 0), Handler)
        self._server.hub = self
        self.url = f"http://{host}:{self._server.server_port}"

    def record(self, path, headers):
        with self._lock:
            request = Request(path, headers, sum(known.path == path for known in self.requests))
            self.requests.append(request)
            return request

    def of(self, name):
        return [request for request in self.requests if request.is_for(name)]

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def answers(status, body=None, headers=(), when=lambda request: True):
    """Returns a fault that answers with this status."""
    def fault(handler, request):
        if when(request):
            handler.send_json(status, body or {"error": "as the test wants"}, headers)
            return True
        return False
    return fault
