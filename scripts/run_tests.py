#!/usr/bin/env python3
"""Runs the tests of a build directory and counts them: every GoogleTest case under ctest, tests/*_test.py and
tests/e2e/*_test.py. A Python test prints "N passed, N failed" as its last line and exits non-zero on failure;
it finds the binary in $HADAL_BINARY. The last line printed here is the sum of all, in the same form."""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TALLY = re.compile(r"(\d+) passed, (\d+) failed")


def run_ctest(build_dir, filter_text, labels, jobs):
    """Runs ctest; returns (passed, failed, skipped) summed over the cases of all binaries."""
    listed = subprocess.run(["ctest", "--test-dir", build_dir, "--show-only=json-v1"] + labels,
                            check=True, capture_output=True, text=True).stdout
    # A test that was never built is listed without a command; ctest itself reports it, it is counted below.
    binaries = {test["name"]: Path(test.get("command", [test["name"]])[0]).name
                for test in json.loads(listed).get("tests", [])}
    if not binaries:
        return 0, 0, 0
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory(prefix="hadal-tests-") as reports:
        environment = dict(os.environ, GTEST_OUTPUT=f"json:{reports}/", GTEST_BRIEF="1")
        if filter_text:
            environment["GTEST_FILTER"] = filter_text if "*" in filter_text else f"*{filter_text}*"
        exit_code = subprocess.run(["ctest", "--test-dir", build_dir, "--output-on-failure", "-j", str(jobs)] + labels,
                                   env=environment, check=False).returncode
        for name, binary in binaries.items():
            report = Path(reports) / f"{binary}.json"
            if not report.is_file():  # it crashed, ran out of time or was not built
                print(f"{name}: {binary} ended without a report", flush=True)
                failed += 1
                continue
            for suite in json.loads(report.read_text(encoding="utf-8"))["testsuites"]:
                for case in suite["testsuite"]:
                    if case.get("failures"):
                        failed += 1
                    elif case["result"] == "COMPLETED":
                        passed += 1
                    elif case["result"] == "SKIPPED":
                        skipped += 1
    if exit_code != 0 and failed == 0:  # every case passed, but a binary did not end well: a leak, say
        print("a test binary failed after its cases", flush=True)
        failed = 1
    return passed, failed, skipped


def run_python(script, environment, python=sys.executable):
    """Runs one Python test; returns (passed, failed), a bad exit counting as one failure at least."""
    started = time.monotonic()
    try:
        done = subprocess.run([str(python), str(script)], env=environment, timeout=900, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        output, exit_code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output, exit_code = (error.stdout or b"").decode(errors="replace") + "\nno end after 900 s", 1
    tallies = TALLY.findall(output)
    passed, failed = map(int, tallies[-1]) if tallies else (int(exit_code == 0), 0)
    if exit_code != 0:
        failed = max(failed, 1)
    name = script.relative_to(ROOT)
    print(f"{name}: {passed} passed, {failed} failed ({time.monotonic() - started:.1f} s)", flush=True)
    if failed:
        print(output, flush=True)
    return passed, failed


def run_tests_in(scripts, build_dir, filter_text, python=sys.executable):
    """Runs the Python tests whose file name matches against a build's binary; returns (passed, failed)."""
    environment = dict(os.environ, HADAL_BINARY=str(build_dir / "hadal"), PYTHONUNBUFFERED="1")
    pattern = re.compile(re.escape(filter_text).replace(r"\*", ".*"))
    passed = failed = 0
    for script in scripts:
        if pattern.search(script.name):
            counts = run_python(script, environment, python)
            passed, failed = passed + counts[0], failed + counts[1]
    return passed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-dir", default=str(ROOT / "build" / "cpu-release"))
    parser.add_argument("--filter", default="", help="part of a test's name, or a pattern with '*'")
    parser.add_argument("--only", default="", help="a regular expression of ctest names; no Python tests then")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    build_dir = Path(options.build_dir).resolve()
    # What is tested here is the CPU, where a build or machine has a GPU too (scripts/gpu_tests is for that).
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

    labels = ["-R", options.only] if options.only else []
    passed, failed, skipped = run_ctest(str(build_dir), options.filter, labels, options.jobs)
    if not options.only:
        scripts = sorted((ROOT / "tests").glob("*_test.py")) + sorted((ROOT / "tests/e2e").glob("*_test.py"))
        counts = run_tests_in(scripts, build_dir, options.filter)
        passed, failed = passed + counts[0], failed + counts[1]
    if passed + failed == 0:
        print("no test was run" + (f": nothing matches '{options.filter}'" if options.filter else ""))
        failed = 0 if skipped else 1
    if skipped:
        print(f"{skipped} skipped")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
