#!/usr/bin/env python3
"""Runs tests/clients/*_test.py against a build's `hadal serve`, with other people's packages in build/clients-venv.
A package registry that cannot be reached is one line, and no failure. The last line is "N passed, N failed"."""
import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from run_tests import ROOT, run_tests_in

CLIENTS = ROOT / "tests/clients"
VENV = ROOT / "build/clients-venv"
REQUIREMENTS = (["-r", CLIENTS / "requirements.txt"], ["--no-deps", "-r", CLIENTS / "requirements-alone.txt"])
# What pip says when nothing answers, as opposed to an answer that the package is not there.
UNREACHABLE = re.compile(r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|"
                         r"ConnectionResetError|Connection (?:refused|broken|timed out)|Network is unreachable|"
                         r"No route to host|Temporary failure in name resolution|SSLError|\b50[234] (?:Server )?Error")


class RegistryUnreachable(Exception):
    pass


def prepare():
    """The interpreter of an environment with the pinned packages; made anew when a pin or the Python changes."""
    python = VENV / "bin/python"
    wanted = hashlib.sha256(sys.version.encode())
    for words in REQUIREMENTS:
        wanted.update(words[-1].read_bytes())
    stamp = VENV / "complete"
    if stamp.is_file() and stamp.read_text(encoding="ascii") == wanted.hexdigest():
        return python
    shutil.rmtree(VENV, ignore_errors=True)
    venv.create(VENV, with_pip=True)
    for words in REQUIREMENTS:
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", "--retries", "2", *words],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            symptom = UNREACHABLE.search(done.stderr)
            if symptom:
                raise RegistryUnreachable(symptom[0])
            sys.exit(f"pip install failed:\n{done.stdout}{done.stderr}\n0 passed, 1 failed")
    stamp.write_text(wanted.hexdigest(), encoding="ascii")
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-dir", default=str(ROOT / "build" / "cpu-release"))
    parser.add_argument("--filter", default="", help="part of a test's file name, or a pattern with '*'")
    options = parser.parse_args()
    try:
        python = prepare()
    except RegistryUnreachable as error:
        print(f"clients: skipped, the package registry cannot be reached ({error})")
        print("0 passed, 0 failed")
        return 0
    passed, failed = run_tests_in(sorted(CLIENTS.glob("*_test.py")), Path(options.build_dir).resolve(), options.filter,
                                  python=python)
    if passed + failed == 0:
        print(f"no test was run: nothing matches '{options.filter}'")
        failed = 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
