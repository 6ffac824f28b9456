#!/usr/bin/env python3
"""Runs the tests of a build directory and counts them: every GoogleTest case under ctest, tests/*_test.py and
tests/e2e/*_test.py. A Python test ends with a line "N passed, N failed", or "N passed, N failed, N skipped", and exits
with a code other than 0 on failure; it finds the binary in $HADAL_BINARY. The last line printed here is the sum of all,
in the same form. With CI=true a test that was skipped is a failure."""
import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tally import Tally

ROOT = Path(__file__).resolve().parent.parent
# This test compares delays with those of an undisturbed run, so no other test may run beside it.
ALONE = {"server_large_bodies_test.py"}


def count_report(report):
    """Returns the Tally of a GoogleTest report (a JSON file), and prints the cases that were skipped."""
    tally = Tally()
    for suite in json.loads(report.read_text(encoding="utf-8"))["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                tally.failed += 1
            elif case["result"] == "COMPLETED":
                tally.passed += 1
            elif case["result"] == "SKIPPED":
                tally.skip(f"{suite['name']}.{case['name']}")
    return tally


def report_of(test):
    """Returns the file in which a ctest test reports its cases, as its environment says."""
    values = {value["name"]: value["value"] for value in test["properties"]}
    environment = dict(variable.split("=", 1) for variable in values["ENVIRONMENT"] if variable)
    return Path(environment["GTEST_OUTPUT"].removeprefix("json:"))


def run_ctest(build_dir, filter_text, labels, jobs):
    """Runs ctest; returns the Tally of the cases of all binaries."""
    listed = subprocess.run(["ctest", "--test-dir", build_dir, "--show-only=json-v1"] + labels,
                            check=True, capture_output=True, text=True).stdout
    reports = {test["name"]: report_of(test) for test in json.loads(listed).get("tests", [])}
    tally = Tally()
    if not reports:
        return tally
    for report in reports.values():
        report.unlink(missing_ok=True)
    environment = dict(os.environ, GTEST_BRIEF="1")
    if filter_text:
        environment["GTEST_FILTER"] = filter_text if "*" in filter_text else f"*{filter_text}*"
    exit_code = subprocess.run(["ctest", "--test-dir", build_dir, "--output-on-failure", "-j", str(jobs)] + labels,
                               env=environment, check=False).returncode
    for name, report in reports.items():
        if report.is_file():
            tally.add(count_report(report))
        else:  # it crashed, ran out of time or was not built
            print(f"{name} ended without a report", flush=True)
            tally.failed += 1
    if exit_code != 0 and tally.failed == 0:  # every case passed, but a binary failed at its end, for example by a leak
        print("a test binary failed after its cases", flush=True)
        tally.failed = 1
    return tally


def run_python(script, environment, python=sys.executable):
    """Runs one Python test; returns its Tally, in which a bad exit is one failure at least."""
    started = time.monotonic()
    try:
        done = subprocess.run([str(python), str(script)], env=environment, timeout=900, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        output, exit_code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output, exit_code = (error.stdout or b"").decode(errors="replace") + "\nno end after 900 s", 1
    tally = Tally.last_in(output) or Tally(passed=int(exit_code == 0))
    if exit_code != 0:
        tally.failed = max(tally.failed, 1)
    said = f"{script.relative_to(ROOT)}: {tally} ({time.monotonic() - started:.1f} s)\n"
    if tally.failed or tally.skipped:
        said += output + "\n"
    print(said, end="", flush=True)  # in one call, because other tests may print at the same time
    return tally


def matching(scripts, filter_text):
    """Returns the tests whose file name contains the text, or matches it if it has a '*'."""
    pattern = re.compile(re.escape(filter_text).replace(r"\*", ".*"))
    return [script for script in scripts if pattern.search(script.name)]


def run_tests_in(scripts, build_dir, python=sys.executable, jobs=1):
    """Runs Python tests against a build's binary, `jobs` at a time except for those of ALONE; returns their Tally."""
    environment = dict(os.environ, HADAL_BINARY=str(build_dir / "hadal"), PYTHONUNBUFFERED="1")
    tally = Tally()
    for workers, part in ((jobs, [script for script in scripts if script.name not in ALONE]),
                          (1, [script for script in scripts if script.name in ALONE])):
        with ThreadPoolExecutor(workers) as pool:
            for result in pool.map(lambda script: run_python(script, environment, python), part):
                tally.add(result)
    return tally


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-dir", default=str(ROOT / "build" / "cpu-release"))
    parser.add_argument("--filter", default="", help="part of a test's name, or a pattern with '*'")
    parser.add_argument("--only", default="", help="only the ctest names that match this regular expression, and no Python tests")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    build_dir = Path(options.build_dir).resolve()
    # Only the CPU is tested here, even if the build supports GPUs and the machine has one (scripts/gpu_tests tests GPUs).
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

    labels = ["-R", options.only] if options.only else []
    tally = run_ctest(str(build_dir), options.filter, labels, options.jobs)
    if not options.only:
        scripts = sorted((ROOT / "tests").glob("*_test.py")) + sorted((ROOT / "tests/e2e").glob("*_test.py"))
        tally.add(run_tests_in(matching(scripts, options.filter), build_dir, jobs=options.jobs))
    if tally.passed + tally.failed + tally.skipped == 0:
        print("no test was run" + (f": nothing matches '{options.filter}' (upper and lower case differ)"
                                   if options.filter else ""))
        tally.failed = 1
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
