#!/usr/bin/env python3
"""Runs tests/clients/*_test.py against a build's `hadal serve`, with other people's packages in build/clients-venv.
Where no package registry can be reached, the tests are counted as skipped; with CI=true that is a failure. The last line
is "N passed, N failed", with ", N skipped" after it where tests were skipped."""
import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from run_tests import ROOT, matching, run_tests_in
from tally import Tally

CLIENTS = ROOT / "tests/clients"
VENV = ROOT / "build/clients-venv"
LOCK = CLIENTS / "requirements.lock"  # every package with version and hash; scripts/pin_clients writes it
# pip's error matches this if the registry cannot be reached. It does not match if the registry answers that it lacks a package.
UNREACHABLE = re.compile(r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|"
                         r"ConnectionResetError|Connection (?:refused|broken|timed out)|Network is unreachable|"
                         r"No route to host|Temporary failure in name resolution|SSLError|\b50[234] (?:Server )?Error")


class RegistryUnreachable(Exception):
    pass


def prepare(directory):
    """Returns the interpreter of an environment with the pinned packages. The environment is made anew when a pin or the
    Python version changes."""
    python = directory / "bin/python"
    wanted = hashlib.sha256(sys.version.encode() + LOCK.read_bytes())
    stamp = directory / "complete"
    if stamp.is_file() and stamp.read_text(encoding="ascii") == wanted.hexdigest():
        return python
    shutil.rmtree(directory, ignore_errors=True)
    venv.create(directory, with_pip=True)
    done = subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", "--retries", "2", "--no-deps",
                           "--require-hashes", "--requirement", LOCK],
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
    parser.add_argument("--venv", type=Path, default=VENV, help="where the packages are installed")
    options = parser.parse_args()
    tests = matching(sorted(CLIENTS.glob("*_test.py")), options.filter)
    tally = Tally()
    try:
        if tests:
            tally = run_tests_in(tests, Path(options.build_dir).resolve(), python=prepare(options.venv))
        else:
            print(f"no test was run: nothing matches '{options.filter}' (upper and lower case differ)")
            tally.failed = 1
    except RegistryUnreachable as error:
        tally.skip(f"{len(tests)} files of tests: the package registry cannot be reached ({error})", len(tests))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
