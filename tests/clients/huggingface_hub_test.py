#!/usr/bin/env python3
"""Shares a cache between `hadal fetch` and the package huggingface_hub, in both directions, with a stand-in of the hub: each
finds what the other has fetched, and neither fetches it again."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import filelock
from checks import BIN, TINY, check, check_equal, finish, run
from hub_server import HubServer, Repository

CONFIG = (TINY / "config.json").read_bytes()
INDEX = json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}).encode()
FILES = {"config.json": CONFIG, "tokenizer_config.json": b"{}", "model.safetensors.index.json": INDEX,
         "model-00001-of-00001.safetensors": bytes(range(256)) * 4096}

# The package reads the environment when it is imported, so each use of it is a process of its own.
SNAPSHOT = """
import huggingface_hub, sys
print(huggingface_hub.snapshot_download("org/name", revision=sys.argv[1], local_files_only=sys.argv[2] == "offline"))
"""
SCAN = """
import huggingface_hub
info = huggingface_hub.scan_cache_dir()
for repo in info.repos:
    for revision in repo.revisions:
        print(repo.repo_id, revision.commit_hash, *sorted(revision.refs), revision.size_on_disk, len(revision.files))
print(len(info.warnings), "warnings")
"""


def environment(home, url, **more):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("HF_") and not name.lower().endswith("_proxy")}
    return {**kept, "HF_HOME": str(home), "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1", **more}


def printed(name, words, env):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, check=False, env=env)
    check(f"{name}: exit code", done.returncode == 0, f"{done.returncode}: {done.stderr}")
    return done.stdout.strip()


def downloads(hub):
    return [request.path for request in hub.requests if "/resolve/" in request.path]


def the_package_finds_what_hadal_fetched(home):
    repository = Repository(dict(FILES))
    with HubServer(repository) as hub:
        env = environment(home, hub.url)
        fetched = printed("hadal fetch", [BIN, "fetch", "--model-path", "org/name"], env)
        check_equal("hadal asks for each file once", len(downloads(hub)), len(FILES))
        asked = len(hub.requests)
        for revision in ("main", repository.commit):
            found = printed(f"offline, {revision}", [sys.executable, "-c", SNAPSHOT, revision, "offline"], env)
            check_equal(f"the package finds the snapshot of {revision}", found, fetched)
        check_equal("the package asks for nothing offline", len(hub.requests), asked)
        found = printed("online", [sys.executable, "-c", SNAPSHOT, "main", "online"], env)
        check_equal("the package finds the snapshot online", found, fetched)
        check_equal("the package fetches no file again", len(downloads(hub)), len(FILES))
        size = sum(map(len, FILES.values()))
        check_equal("the package lists the cache without warnings", printed("scan", [sys.executable, "-c", SCAN], env),
                    f"org/name {repository.commit} main {size} {len(FILES)}\n0 warnings")


def hadal_finds_what_the_package_fetched(home):
    repository = Repository(dict(FILES))
    with HubServer(repository) as hub:
        env = environment(home, hub.url)
        fetched = printed("snapshot_download", [sys.executable, "-c", SNAPSHOT, "main", "online"], env)
        snapshot = pathlib.Path(fetched)
        check("the package has fetched", all((snapshot / name).read_bytes() == content for name, content in FILES.items()), fetched)
        asked = len(downloads(hub))
        found = printed("hadal fetch", [BIN, "fetch", "--model-path", "org/name"], env)
        check_equal("hadal finds the snapshot", found, fetched)
        found = printed("hadal fetch of a tag", [BIN, "fetch", "--model-path", "org/name@v1"], env)
        check_equal("hadal finds the snapshot of a tag", found, fetched)
        check_equal("hadal fetches no file again", len(downloads(hub)), asked)
        found = printed("hadal info offline", [BIN, "info", "--model-path", "org/name"], {**env, "HF_HUB_OFFLINE": "1"})
        check("offline hadal reads the package's snapshot", str(snapshot) in found, found)


def both_wait_for_the_same_lock(home):
    """While the package's lock of a blob is held, hadal does not fetch this blob."""
    repository = Repository(dict(FILES))
    name = "model-00001-of-00001.safetensors"
    with HubServer(repository) as hub:
        folder = home / "hub/.locks/models--org--name"
        folder.mkdir(parents=True)
        words = [BIN, "fetch", "--model-path", "org/name"]
        lock = filelock.FileLock(folder / f"{repository.checksum(name)}.lock")
        lock.acquire()
        with subprocess.Popen(words, env=environment(home, hub.url), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as process:
            line = next((line for line in process.stderr if "waiting for it" in line), "")
            check("hadal says that it waits", name in line, line)
            check_equal("hadal does not ask for a blob that is locked", hub.of(name), [])
            lock.release()
            process.communicate(timeout=300)
        check_equal("hadal goes on when the lock is free", (process.returncode, len(hub.of(name))), (0, 1))


def main():
    for claim in (the_package_finds_what_hadal_fetched, hadal_finds_what_the_package_fetched, both_wait_for_the_same_lock):
        with tempfile.TemporaryDirectory(prefix="hadal-clients-") as home:
            run(claim, pathlib.Path(home))
    return finish()


if __name__ == "__main__":
    sys.exit(main())
