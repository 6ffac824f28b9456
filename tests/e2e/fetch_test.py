#!/usr/bin/env python3
"""Tests fetching models from a stand-in of the Hugging Face hub: what arrives, and every fault of a server, a connection,
a disk and another process."""
import concurrent.futures
import ctypes
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading

from command_line import BIN, CONFIG, TINY, error_lines
from counting import check as count_check, finish
from hub_server import HubServer, Repository, answers

COUNTING = threading.Lock()
INDEX = "model.safetensors.index.json"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def check(name, good, detail=""):
    with COUNTING:  # the claims run side by side
        return count_check(name, good, detail)


def pattern(size, seed):
    """Makes bytes that differ everywhere, so that pieces in the wrong place give another checksum."""
    return b"".join(struct.pack("<II", seed, i) for i in range((size + 7) // 8))[:size]


def repository(**more):
    """Makes a repository whose weights are no model: they are only fetched."""
    files = {"config.json": json.dumps(CONFIG).encode(), "tokenizer_config.json": b"{}", "README.md": b"# not needed",
             "model.py": b"# not needed", "original/config.json": b"not needed",
             INDEX: json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}}).encode(),
             SHARDS[0]: pattern(3 << 20, 1), SHARDS[1]: pattern(2 << 20, 2), "extra.safetensors": b"not in the index"}
    return Repository(files, **more)


class Cache:
    """Holds a cache of its own, and runs `hadal` commands that use it."""

    def __init__(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="hadal-fetch-"))
        self.folder = self.home / "hub/models--org--name"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.home, ignore_errors=True)

    def environment(self, url, more=None):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith("HF_") and not name.lower().endswith("_proxy")}
        return {**kept, "HOME": "/nonexistent", "HF_HOME": str(self.home), "HF_ENDPOINT": url, **(more or {})}

    def start(self, url, *words, env=None, confined=None):
        """Runs a command; `confined` is a word of CONFINEMENTS."""
        prefix = [sys.executable, __file__, confined] if confined else []
        return subprocess.Popen([*prefix, BIN, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=self.environment(url, env))

    def run(self, url, *words, env=None, confined=None):
        """Returns (exit code, stdout, stderr)."""
        with self.start(url, *words, env=env, confined=confined) as process:
            out, err = process.communicate(timeout=300)
            return process.returncode, out.decode(), err.decode("utf-8", "replace")

    def fetch(self, hub, *words, model="org/name", **options):
        return self.run(hub.url, "fetch", model, *words, **options)

    def content(self, repo, name):
        return (self.folder / "snapshots" / repo.commit / name).read_bytes()

    def incomplete(self):
        return sorted((self.folder / "blobs").glob("*.incomplete"))


def check_fetched(name, cache, repo, outcome):
    code, out, err = outcome
    check(f"{name}: exit code", code == 0, f"{code}: {err}")
    snapshot = cache.folder / "snapshots" / repo.commit
    check(f"{name}: the directory is printed", out.strip() == str(snapshot), out)
    wanted = {"config.json", "tokenizer_config.json", INDEX, *SHARDS}
    got = {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*")} if snapshot.is_dir() else set()
    check(f"{name}: the needed files and no others are there", got == wanted, got)
    check(f"{name}: their content is right", all(cache.content(repo, file) == repo.files[file] for file in wanted & got))
    check(f"{name}: nothing incomplete is left", not cache.incomplete(), cache.incomplete())


def check_fails(name, outcome, *wanted, code=1):
    got, out, err = outcome
    lines = error_lines(err)
    check(f"{name}: exit code", got == code, f"{got}: {err}")
    check(f"{name}: one line of error", len(lines) == 1 and "error:" in lines[0], err)
    check(f"{name}: the error says why", all(word in err for word in wanted), f"{wanted} in {err}")
    check(f"{name}: no directory is printed", out == "", out)


def test_what_arrives():
    repo = repository()
    with HubServer(repo) as hub, Cache() as cache:
        check_fetched("a model", cache, repo, cache.fetch(hub))
        config = cache.folder / "snapshots" / repo.commit / "config.json"
        check("a file of a snapshot is a link to its blob", os.readlink(config) == f"../../blobs/{repo.checksum('config.json')}")
        check("the branch names the commit", (cache.folder / "refs/main").read_text() == repo.commit)
        asked = len(hub.requests)
        check_fetched("a second time", cache, repo, cache.fetch(hub))
        check("a second time only the list of files is asked for", len(hub.requests) == asked + 1, hub.requests[asked:])
        (cache.folder / "blobs" / repo.checksum(SHARDS[1])).write_bytes(b"cut off")
        check_fetched("a blob of the wrong size", cache, repo, cache.fetch(hub))
    with HubServer(repo) as hub, Cache() as cache:
        check_fetched("a tag", cache, repo, cache.fetch(hub, model="org/name@v1"))
        check("the tag names the commit", (cache.folder / "refs/v1").read_text() == repo.commit)
        check_fetched("a commit", cache, repo, cache.fetch(hub, model=f"org/name@{repo.commit}"))
        check("a commit has no reference", not (cache.folder / "refs" / repo.commit).exists())


def test_commands_fetch_what_they_read():
    repo = repository()
    with HubServer(repo) as hub, Cache() as cache:
        code, out, err = cache.run(hub.url, "info", "--model-path", "org/name", "--json")
        check("info of a model on the hub", code == 0 and json.loads(out)["architecture"] == "DeepseekV3ForCausalLM", err)
        check("info fetches no weights", not any(hub.of(shard) for shard in SHARDS), hub.requests)
        asked = len(hub.requests)
        code, _, err = cache.run(hub.url, "info", "--model-path", "org/name", "--json")
        check("what is there is used without asking", code == 0 and len(hub.requests) == asked, err)
    if not any(TINY.glob("*.safetensors")):
        return
    names = ["config.json", "tokenizer.json", "tokenizer_config.json", *(path.name for path in TINY.glob("*.safetensors*"))]
    tiny = Repository({name: (TINY / name).read_bytes() for name in names})
    with HubServer(tiny) as hub, Cache() as cache:
        words = ["generate", "--prompt", "Once upon a time", "--max-new-tokens", "8", "--temperature", "0", "--model-path"]
        code, fetched, err = cache.run(hub.url, *words, "org/name")
        _, local, _ = cache.run(hub.url, *words, TINY)
        check("a model that was fetched generates what its directory does", code == 0 and fetched == local, (fetched, err))


def test_other_models_are_refused_before_their_weights_are_fetched():
    other = repository()
    other.files["config.json"] = json.dumps({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}).encode()
    wrong = repository()
    wrong.files["config.json"] = json.dumps({**CONFIG, "hidden_size": -1}).encode()
    for name, repo, wanted in (("another kind of model", other, ["Qwen2ForCausalLM"]), ("a wrong config", wrong, ["hidden_size"])):
        for words in (["fetch", "org/name"], ["generate", "--prompt", "Hello", "--model-path", "org/name"]):
            with HubServer(repo) as hub, Cache() as cache:
                check_fails(f"{name}, {words[0]}", cache.run(hub.url, *words), "org/name", "config.json", *wanted)
                check(f"{name}, {words[0]}: no weights are fetched", not any(hub.of(shard) for shard in SHARDS), hub.requests)


def test_refusals():
    repo = repository()
    for name, fault, wanted in [
        ("401", answers(401, {"error": "Invalid credentials"}), ["org/name", "HTTP status 401", "Invalid credentials", "HF_TOKEN"]),
        ("403", answers(403, headers={"X-Error-Message": "Access is restricted"}), ["403", "Access is restricted"]),
        ("404", answers(404, {"error": "Repository not found"}), ["404", "Repository not found", "no such model or revision"]),
        ("404 of a file", answers(404, when=lambda request: request.is_for(SHARDS[1])), ["404", SHARDS[1]]),
        ("an answer that is no JSON", lambda handler, _: handler.send_bytes(200, b"<html>") or True, ["not a JSON object"]),
        ("a wait that is too long", answers(429, headers={"Retry-After": "86400"}), ["429", "wait for 86400 s"]),
        ("redirects without end", answers(302, headers={"Location": "/again"}), ["more than 5 redirects"]),
    ]:
        with HubServer(repo, fault) as hub, Cache() as cache:
            outcome = cache.fetch(hub)
            check_fails(name, outcome, *wanted)
            check(f"{name}: only a model that is not there is called so", ("no such model or revision" in outcome[2]) == (name == "404"), outcome)
            check(f"{name}: it is asked only once",
                  all(request.number == 0 or request.path == "/again" for request in hub.requests), hub.requests)
    with Cache() as cache:
        for words, wanted in [(["--model-path", "no-slash"], "org/name"), (["--model-path", "org/name@../x"], "org/name@revision"),
                              ([], "--model-path is missing")]:
            check_fails(f"fetch {words}", cache.run("http://127.0.0.1:1", "fetch", *words), wanted, code=2)
        check_fails("a bad endpoint", cache.run("ftp://host", "fetch", "--model-path", "a/b"), "HF_ENDPOINT", "ftp://host", code=2)
        check_fails("a token of two lines", cache.run("http://127.0.0.1:1", "fetch", "--model-path", "a/b", env={"HF_TOKEN": "a\nb"}),
                    "HF_TOKEN", code=2)


def test_a_server_that_never_recovers():
    with HubServer(repository(), answers(503)) as hub, Cache() as cache:
        check_fails("503 for ever", cache.fetch(hub), "503", "given up after 5 attempts")
        check("503 for ever: five attempts", len(hub.requests) == 5, hub.requests)


def test_nobody_listens():
    with socket.socket() as closed, Cache() as cache:
        closed.bind(("127.0.0.1", 0))  # bound and not listening, so that no other process takes the port
        check_fails("no server", cache.run(f"http://127.0.0.1:{closed.getsockname()[1]}", "fetch", "--model-path", "org/name"),
                    "org/name", "given up after 5 attempts")


def test_passing_faults():
    repo = repository()
    for status, headers in [(429, {"Retry-After": "1"}), (500, {}), (502, {}), (504, {})]:
        fault = answers(status, headers=headers, when=lambda request: request.number == 0)
        with HubServer(repo, fault) as hub, Cache() as cache:
            check_fetched(f"{status} once for each address", cache, repo, cache.fetch(hub))


def test_cut_connections():
    repo = repository()
    def cut(handler, request):
        if not request.is_for(SHARDS[0]) or request.number > 1:
            return False
        handler.send_file(repo, SHARDS[0], request, cut_at=1_000_000)
        return True
    with HubServer(repo, cut) as hub, Cache() as cache:
        check_fetched("a connection that is cut twice", cache, repo, cache.fetch(hub))
        begins = [request.range_begin for request in hub.of(SHARDS[0])]
        check("each time it goes on where it ended", begins == [0, 1_000_000, 2_000_000], begins)

    def deny_ranges(handler, request):
        if not request.is_for(SHARDS[0]):
            return False
        request.headers.pop("range", None)
        handler.send_file(repo, SHARDS[0], request, cut_at=1_000_000 if request.number == 0 else None)
        return True
    with HubServer(repo, deny_ranges) as hub, Cache() as cache:
        check_fetched("a server that ignores ranges", cache, repo, cache.fetch(hub))


def test_an_interruption_is_resumed():
    repo = repository()
    begun, go_on = threading.Event(), threading.Event()
    def stall(handler, request):
        if not request.is_for(SHARDS[0]) or request.number > 0:
            return False
        handler.send_file(repo, SHARDS[0], request, cut_at=len(repo.files[SHARDS[0]]) // 2)
        handler.wfile.flush()
        begun.set()
        go_on.wait(60)  # the rest never comes
        return True
    with HubServer(repo, stall) as hub, Cache() as cache:
        blob = cache.folder / "blobs" / f"{repo.checksum(SHARDS[0])}.incomplete"
        with cache.start(hub.url, "fetch", "--model-path", "org/name") as process:
            begun.wait(60)
            while not blob.exists() or blob.stat().st_size < len(repo.files[SHARDS[0]]) // 2:
                if process.poll() is not None:
                    break
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        go_on.set()
        check("Ctrl-C ends fetching with 130", process.returncode == 130, (process.returncode, err))
        check("what has arrived stays", blob.exists(), list(cache.folder.rglob("*")))
        check("an interrupted model is not what the branch names", not (cache.folder / "refs/main").exists())
        hub.fault = None
        check_fetched("after an interruption", cache, repo, cache.fetch(hub))
        begins = [request.range_begin for request in hub.of(SHARDS[0])]
        check("after an interruption it goes on where it ended", begins == [0, len(repo.files[SHARDS[0]]) // 2], begins)
        blob.parent.joinpath(repo.checksum(SHARDS[0])).unlink()
        blob.write_bytes(b"x" * 1000)
        check_fetched("a leftover with wrong bytes is dropped", cache, repo, cache.fetch(hub))


def test_wrong_sizes_and_sums():
    repo = repository()
    right = repo.files[SHARDS[0]]
    wrong = b"?" + right[1:]

    def sends(content, times):
        def fault(handler, request):
            if not request.is_for(SHARDS[0]) or request.number >= times:
                return False
            handler.send_file(repo, SHARDS[0], request, content=content, headers={})
            return True
        return fault
    with HubServer(repo, sends(wrong, 1)) as hub, Cache() as cache:
        check_fetched("a wrong byte once", cache, repo, cache.fetch(hub))
    for name, content, wanted in [("a wrong byte for ever", wrong, ["checksum", repo.checksum(SHARDS[0])]),
                                  ("a file that is too long", right + b"more", ["longer than the 3145728 bytes"]),
                                  ("a file that is too short", right[:-1], ["fewer than the 3145728 bytes"])]:
        with HubServer(repo, sends(content, 99)) as hub, Cache() as cache:
            check_fails(name, cache.fetch(hub), SHARDS[0], *wanted)
            blob = cache.folder / "blobs" / repo.checksum(SHARDS[0])
            check(f"{name}: no blob is made", not blob.exists())
            check(f"{name}: no link is made", not (cache.folder / "snapshots" / repo.commit / SHARDS[0]).exists())
    small = repository()
    small.files["tokenizer_config.json"] = b"[]"

    def other_config(handler, request):
        if request.is_for("tokenizer_config.json"):
            handler.send_bytes(200, b"{}")
            return True
        return False
    with HubServer(small, other_config) as hub, Cache() as cache:
        check_fails("a small file with the wrong git checksum", cache.fetch(hub), "tokenizer_config.json", "checksum")
    for header, value in [("X-Repo-Commit", "f" * 40), ("X-Linked-Size", "1"), ("X-Linked-Etag", '"' + "f" * 64 + '"')]:
        def contradicts(handler, request, changed=(header, value)):
            if not request.is_for(SHARDS[0]):
                return False
            handler.send_file(repo, SHARDS[0], request, headers={**handler.hub_headers(repo, SHARDS[0]), changed[0]: changed[1]})
            return True
        with HubServer(repo, contradicts) as hub, Cache() as cache:
            check_fails(f"{header} of another file", cache.fetch(hub), SHARDS[0])


def test_names_and_sizes_are_not_trusted():
    def lists(change):
        def fault(handler, request):
            if "/api/models/" not in request.path:
                return False
            info = repository().info()
            change(info)
            handler.send_json(200, info)
            return True
        return fault
    for name, change, wanted in [
        ("a commit with a path", lambda info: info.update(sha="../../../escaped"), "sha is"),
        ("a checksum with a path", lambda info: info["siblings"][0].update(blobId="../../../escaped"), "no checksum"),
        ("more files than anybody has", lambda info: info["siblings"].extend([{"rfilename": "x"}] * 1_000_000),
         "siblings lists too many files; at most 200000 are accepted"),
        ("a size that is none", lambda info: info["siblings"][0].update(size=-5), "no size"),
        ("more than the disk holds", lambda info: [sibling["lfs"].update(size=1 << 61) for sibling in info["siblings"] if "lfs" in sibling],
         "GB left"),
    ]:
        with HubServer(repository(), lists(change)) as hub, Cache() as cache:
            check_fails(name, cache.fetch(hub), wanted)
            check(f"{name}: no weights are asked for", not any(hub.of(shard) for shard in SHARDS), hub.requests)
            check(f"{name}: nothing is written elsewhere", not list(cache.home.rglob("*escaped*")))
    for bad in ["../../../escaped.safetensors", "/tmp/escaped.safetensors", "a/escaped.safetensors", ".."]:
        repo = repository()
        repo.files[INDEX] = json.dumps({"weight_map": {"a": bad}}).encode()
        repo.files[bad] = b"text"
        with HubServer(repo) as hub, Cache() as cache:
            check_fails(f"an index that names {bad}", cache.fetch(hub), "weight_map", bad)
            check(f"an index that names {bad}: nothing is written", not list(cache.home.parent.glob("escaped*")))


def test_the_token_stays_at_home():
    repo = repository()
    with HubServer(repo) as storage, Cache() as cache:
        def redirect(handler, request):
            if not request.is_for(SHARDS[0]):
                return False
            handler.send_bytes(302, b"", {**handler.hub_headers(repo, SHARDS[0]), "Location": f"{storage.url}{request.path}?signature=x"})
            return True
        def store(handler, request):  # a storage server does not have the hub's headers
            handler.send_file(repo, SHARDS[0], request, headers={"X-Repo-Commit": "not the hub's word"})
            return True
        storage.fault = store
        with HubServer(repo, redirect) as hub:
            check_fetched("a redirect", cache, repo, cache.fetch(hub, env={"HF_TOKEN": "hf_secret"}))
            check("the hub gets the token", all(request.token == "hf_secret" for request in hub.requests), hub.requests)
            check("another server gets the request", len(storage.requests) == 1, storage.requests)
            check("another server gets no token", not any("authorization" in request.headers for request in storage.requests))
        storage.fault = answers(403)
        shutil.rmtree(cache.folder)
        with HubServer(repo, redirect) as hub:
            outcome = cache.fetch(hub, env={"HF_TOKEN": "hf_secret"})
            check_fails("another server refuses", outcome, "403")
            check("an error shows neither token nor signature", "hf_secret" not in outcome[2] and "signature" not in outcome[2], outcome)
    with HubServer(repo) as hub, Cache() as cache:
        (cache.home / "token").write_text("hf_file\n")
        check_fetched("the token file", cache, repo, cache.fetch(hub))
        check("the token of the file is sent", all(request.token == "hf_file" for request in hub.requests))


def limit_files():
    """Limits files to one MiB from now on; a write beyond it fails as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_a_full_disk():
    repo = repository()
    with HubServer(repo) as hub, Cache() as cache:
        check_fails("a full disk", cache.fetch(hub, confined="limit-files"), "cannot write", ".incomplete")
        check_fetched("once there is room", cache, repo, cache.fetch(hub))
        check("what had arrived is not fetched again", any(request.range_begin == 1 << 20 for shard in SHARDS for request in hub.of(shard)))


def test_two_processes_at_once():
    repo = repository()
    both = threading.Barrier(2, timeout=60)
    def together(handler, request):  # both requests arrive before either continues
        if "/api/models/" in request.path:
            both.wait()
        return False
    with HubServer(repo, together) as hub, Cache() as cache:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            outcomes = [future.result() for future in [pool.submit(cache.fetch, hub) for _ in range(2)]]
        for outcome in outcomes:
            check_fetched("two processes", cache, repo, outcome)
        check("two processes fetch each file once", all(len(hub.of(shard)) == 1 for shard in SHARDS), hub.requests)


def deny_sockets():
    """Makes socket(2) end this process by SIGSYS from now on, through a seccomp filter that allows every other
    system call."""
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = {"x86_64": 41, "aarch64": 198}
    allow, kill = 0x7FFF0000, 0x80000000
    program = b"".join(struct.pack("HBBI", *line) for line in [
        (0x20, 0, 0, 0),                               # loads the number of the system call
        (0x15, 0, 1, numbers[os.uname().machine]),     # is it socket?
        (0x06, 0, 0, kill),
        (0x06, 0, 0, allow)])
    buffer = ctypes.create_string_buffer(program, len(program))
    filters = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, filters, 0, 0) != 0:
        sys.exit("seccomp is not available")


CONFINEMENTS = {"limit-files": limit_files, "deny-sockets": deny_sockets}


def test_offline():
    repo = repository()
    with HubServer(repo) as hub, Cache() as cache:
        killed = cache.fetch(hub, confined="deny-sockets")
        check("the filter ends a process that opens a socket", killed[0] == -signal.SIGSYS, killed)
        shutil.rmtree(cache.folder, ignore_errors=True)
        asked = len(hub.requests)
        for name, words, env in [("--offline", ["--offline"], {}), ("HF_HUB_OFFLINE", [], {"HF_HUB_OFFLINE": "1"})]:
            info = ["info", "--model-path", "org/name", *words]
            check_fails(f"{name}: a model that is not there", cache.run(hub.url, *info, env=env, confined="deny-sockets"),
                        "org/name", "hadal fetch", "HF_HUB_OFFLINE")
        check_fails("HF_HUB_OFFLINE: fetch", cache.fetch(hub, env={"HF_HUB_OFFLINE": "1"}, confined="deny-sockets"), "HF_HUB_OFFLINE")
        check("offline nothing is asked", len(hub.requests) == asked, hub.requests)
        cache.fetch(hub)
        for name, words, env in [("--offline", ["--offline"], {}), ("HF_HUB_OFFLINE", [], {"HF_HUB_OFFLINE": "1"})]:
            code, _, err = cache.run(hub.url, "info", "--model-path", "org/name", *words, env=env, confined="deny-sockets")
            check(f"{name}: a model that is there", code == 0, f"{code}: {err}")
        (cache.folder / "snapshots" / repo.commit / SHARDS[1]).unlink()
        check_fails("--offline: a file is missing", cache.run(hub.url, "logits", "--model-path", "org/name", "--input-ids", "1", "--output",
                                                               cache.home / "x", "--offline"), "lacks", SHARDS[1])


def main():
    if len(sys.argv) > 1:  # called by Cache.start
        CONFINEMENTS[sys.argv[1]]()
        os.execv(sys.argv[2], sys.argv[2:])
    claims = [claim for name, claim in globals().items() if name.startswith("test_")]
    with concurrent.futures.ThreadPoolExecutor(len(claims)) as pool:  # they mostly wait
        for claim, future in [(claim, pool.submit(claim)) for claim in claims]:
            error = future.exception()
            check(claim.__name__, error is None, repr(error))
    return finish()


if __name__ == "__main__":
    sys.exit(main())
