#!/usr/bin/env python3
"""Installs the Debian package in a fresh Debian 12, runs the programs that it installs, and removes it again:

    tests/package/debian_test.py hadal_X_amd64.deb

scripts/package calls it. It needs root, mmdebstrap and a Debian mirror, and is skipped where one of them is missing."""
import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from tally import Tally  # noqa: E402  pylint: disable=wrong-import-position

TALLY = Tally()
MIRROR = os.environ.get("HADAL_DEBIAN_MIRROR", "http://deb.debian.org/debian")
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


class Debian:
    """Holds a Debian 12 in a folder, with the packages of every Debian and adduser."""

    def __init__(self, folder):
        self.root = folder

    def run(self, *words, timeout=120):
        """Returns (exit code, stdout, stderr)."""
        done = subprocess.run(["chroot", self.root, *map(str, words)], capture_output=True, text=True, timeout=timeout,
                              stdin=subprocess.DEVNULL, check=False, env={**ENVIRONMENT, "HOME": "/root"})
        return done.returncode, done.stdout, done.stderr

    def works(self, name, *words):
        """Checks that a command succeeds, and returns its output."""
        code, out, err = self.run(*words)
        TALLY.check(name, code == 0, f"{code}: {out}{err}")
        return out

    def has(self, path):
        return os.path.lexists(self.root / path.lstrip("/"))


def files_of(deb):
    """Returns the paths of the files in a package."""
    listed = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True).stdout
    names = subprocess.run(["tar", "-t"], input=listed, check=True, capture_output=True).stdout.decode().splitlines()
    return [name.removeprefix(".") for name in names if not name.endswith("/")]


def completion(port, wait_s=60):
    """Returns the text of the server's answer; tries again for `wait_s` seconds while no process listens."""
    body = {"model": "hadal-tiny", "prompt": "Once upon a time", "max_tokens": 8}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return opener.open(request, timeout=60).read().decode()
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                return ""
            time.sleep(0.2)


def check_service(debian):
    """Runs the command of the unit as its user, because a chroot has no systemd, on a port that is free here."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    config = debian.root / "etc/hadal.yaml"
    text = config.read_text(encoding="utf-8")
    TALLY.check("the configuration has the usual port", "\nport: 30000\n" in text, text)
    config.write_text(text.replace("port: 30000", f"port: {port}"), encoding="utf-8")
    unit = (debian.root / "usr/lib/systemd/system/hadal.service").read_text(encoding="utf-8")
    command = next(line.removeprefix("ExecStart=") for line in unit.splitlines() if line.startswith("ExecStart="))
    user = next(line.removeprefix("User=") for line in unit.splitlines() if line.startswith("User="))
    with subprocess.Popen(["chroot", f"--userspec={user}", debian.root, *command.split()], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**ENVIRONMENT, "HOME": "/var/lib/hadal"}) as server:
        said = completion(port)
        TALLY.check("the unit's command serves as its user with the configuration of the package", '"choices"' in said, said)
        server.terminate()
        err = server.communicate(timeout=60)[1].decode("utf-8", "replace")
    TALLY.check("the server ends when it is told to", server.returncode == 0, f"{server.returncode}: {err}")
    if not shutil.which("systemd-analyze"):
        TALLY.skip("the unit is not checked: that needs systemd-analyze", 2)
        return
    # The unit is checked together with this system's own units, because the small Debian has no other units.
    checked_unit = debian.root / "hadal.service"
    checked_unit.write_text(unit.replace("/usr/bin/hadal", str(debian.root / "usr/lib/hadal/bin/hadal")), encoding="utf-8")
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", checked_unit], capture_output=True, text=True, check=False)
    TALLY.check("systemd finds no fault in the unit", checked.returncode == 0 and "hadal.service" not in checked.stderr, checked.stderr)
    exposed = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20",
                              debian.root / "usr/lib/systemd/system/hadal.service"], capture_output=True, text=True, check=False)
    TALLY.check("systemd calls the unit well protected (2.0 at most)", exposed.returncode == 0, exposed.stdout[-300:])


def check_package(debian, deb):
    shutil.copy(deb, debian.root / "hadal.deb")
    files = files_of(deb)
    debian.works("the package is installed", "dpkg", "--install", "/hadal.deb")
    TALLY.check("all its files are there", all(debian.has(file) for file in files), [file for file in files if not debian.has(file)])
    outside = [file for file in files if not file.startswith(("/usr/", "/etc/hadal.yaml"))]
    TALLY.check("it writes to /usr and its configuration alone", not outside, outside)
    debian.works("the user of the service is there", "getent", "passwd", "hadal")
    version = debian.works("the version is printed", "hadal", "--version")
    TALLY.check("it is the package's", version.split()[-1] == deb.name.split("_")[1], version)
    debian.works("the bundled model generates", "hadal", "generate", "--model-path", "hadal-tiny", "--prompt", "Once", "--max-new-tokens", 4)
    _, _, err = debian.run("hadal", "fetch", "--model-path", "org/name@x")  # no server answers in the chroot, or the model
                                                                            # does not exist
    TALLY.check("the libraries of fetching are there", "org/name@x" in err and "shared libraries" not in err, err)
    for page in ("hadal", "hadal-serve", "hadal-bench-serving"):
        TALLY.check(f"there is a manual page {page}(1)", f"/usr/share/man/man1/{page}.1.gz" in files, files)
    for file in ("bash-completion/completions/hadal", "zsh/vendor-completions/_hadal", "fish/vendor_completions.d/hadal.fish",
                 "doc/hadal/copyright", "doc/hadal/third-party/CONTENTS.txt"):
        TALLY.check(f"{file} has a text", (debian.root / "usr/share" / file).stat().st_size > 100)
    check_service(debian)
    debian.works("it is removed", "dpkg", "--remove", "hadal")
    left = [file for file in files if debian.has(file)]
    TALLY.check("only its configuration stays", left == ["/etc/hadal.yaml"], left)
    TALLY.check("a change of the configuration stays", "port: 30000" not in (debian.root / "etc/hadal.yaml").read_text(encoding="utf-8"))
    debian.works("it is purged", "dpkg", "--purge", "hadal")
    TALLY.check("then nothing of it is left", not any(map(debian.has, ["/etc/hadal.yaml", "/usr/lib/hadal", "/var/lib/hadal"])))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deb", type=Path)
    deb = parser.parse_args().deb.resolve()
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        TALLY.skip("the Debian package is not installed: that needs root and mmdebstrap")
        return TALLY.close()
    folder = Path(tempfile.mkdtemp(prefix="hadal-debian-"))
    os.chmod(folder, 0o755)
    debian = Debian(folder / "root")
    try:
        made = subprocess.run(["mmdebstrap", "--quiet", "--variant=essential", "--include=adduser", "bookworm", debian.root, MIRROR],
                              capture_output=True, text=True, timeout=600, check=False)
        if made.returncode != 0:
            TALLY.skip(f"the Debian package is not installed: no Debian could be made: {made.stderr.strip()[-300:]}")
            return TALLY.close()
        subprocess.run(["mount", "-t", "proc", "proc", debian.root / "proc"], check=True)
        try:
            check_package(debian, deb)
        finally:
            subprocess.run(["umount", "--lazy", debian.root / "proc"], check=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return TALLY.close()


if __name__ == "__main__":
    sys.exit(main())
