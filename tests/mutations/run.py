#!/usr/bin/env python3
"""Puts the faults of faults.toml into the code, one at a time, and writes which test catches each, which proves that the
tests can fail. Works in this checkout: builds only the test binaries that a fault names, and restores every file.

    tests/mutations/run.py [--filter TEXT] [--preset cpu-release] [--jobs N] [--out docs/measurements/mutations.md]
    tests/mutations/run.py --check

First each of these binaries is built and run without a fault; if one fails, nothing is tried. Faults of one folder of src/
follow each other, so that the libraries above it are linked again as seldom as possible. A fault is not tried if it does not
apply, if its file has uncommitted changes, which are left alone, or if the code does not compile with it; the table says why.

--check builds nothing: it applies and reverts every fault in memory, and says which ones do not apply to the sources or name
a test binary that no CMakeLists.txt declares. The last line is "N passed, N failed": faults that were caught (or apply), and
faults that no test caught or that were not tried (or do not apply)."""
import argparse
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from run_tests import count_report  # noqa: E402  pylint: disable=wrong-import-position

SECONDS = 900  # a fault with which a test does not end counts as caught


def preset_of(fault):
    return fault.get("preset", "cpu-release")


def build(build_dir, binaries, jobs):
    """Returns what the compiler says if it fails, otherwise an empty text."""
    if not (build_dir / "build.ninja").is_file():
        subprocess.run(["cmake", "--preset", build_dir.name], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run(["ninja", "-C", build_dir, f"-j{jobs}", *binaries], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def failing(report, said, exit_code):
    """Returns the cases that failed in a test program that has ended with this code, report and output."""
    if report.is_file() and not count_report(report).failed == 0:
        suites = json.loads(report.read_text(encoding="utf-8"))["testsuites"]
        return [f"{suite['name']}.{case['name']}" for suite in suites for case in suite["testsuite"] if case.get("failures")]
    if exit_code == 0:
        return []
    # The program ended in the middle of a case, or a sanitizer has reported something.
    begun = re.findall(r"^\[ RUN      \] (\S+)", said, re.M)
    seen = re.search(r"WARNING: ThreadSanitizer: ([\w -]+?) \(", said)
    if seen:
        begun = re.findall(r"^\[ RUN      \] (\S+)", said[:seen.start()], re.M)
    how = seen[1] if seen else "no end" if exit_code is None else f"exit code {exit_code}"
    return [f"{begun[-1] if begun else 'before the first case'} ({how})"]


def run(binary):
    with tempfile.TemporaryDirectory() as work:
        report = Path(work) / "report.json"
        environment = {**os.environ, "GTEST_OUTPUT": f"json:{report}", "CUDA_VISIBLE_DEVICES": "",
                       "TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "allocator_may_return_null=1"}
        try:
            done = subprocess.run([str(binary)], env=environment, timeout=SECONDS, text=True, errors="replace", check=False,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            return failing(report, done.stdout, done.returncode)
        except subprocess.TimeoutExpired as error:
            return failing(report, (error.stdout or b"").decode(errors="replace"), None)


def find_binary(build_dir, name):
    return next(path for path in build_dir.glob(f"tests/**/{name}") if path.is_file())


def why_not_applicable(fault):
    """Says why the fault does not apply to the sources as they are, or returns an empty text."""
    path = ROOT / fault["file"]
    if not path.is_file():
        return "the file does not exist"
    good = path.read_text(encoding="utf-8")
    if good.count(fault["find"]) != 1:
        return f"its text occurs {good.count(fault['find'])} times in the file; it must occur once"
    if good.replace(fault["find"], fault["put"]) == good:
        return "it changes nothing"
    for binary in fault["binaries"]:
        if not re.fullmatch(r"\w+_test", binary) or binary.removesuffix("_test") not in test_folders():
            return f"no CMakeLists.txt declares the test binary {binary}"
    presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))["configurePresets"]
    if preset_of(fault) not in [preset["name"] for preset in presets]:
        return f"CMakePresets.json has no preset {fault['preset']}"
    return ""


def why_not_tried(fault):
    """Says why the fault does not apply or its file may not be changed, or returns an empty text."""
    why = why_not_applicable(fault)
    if not why and subprocess.run(["git", "diff", "--quiet", "HEAD", "--", fault["file"]], cwd=ROOT, check=False).returncode != 0:
        why = "the file has changes that are not committed"
    return why


@functools.cache
def test_folders():
    """Returns the names that hadal_tests(<name> …) declares under tests/."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("CMakeLists.txt"))
    return {name for text in texts for name in re.findall(r"^\s*hadal_tests\((\w+)", text, re.MULTILINE)}


def without_faults(faults, jobs):
    """Builds and runs every test binary of the faults once, with the sources as they are. Ends the program if a binary fails,
    because that binary would seem to catch every fault."""
    for preset in sorted({preset_of(fault) for fault in faults}):
        binaries = sorted({name for fault in faults if preset_of(fault) == preset for name in fault["binaries"]})
        build_dir = ROOT / "build" / preset
        said = build(build_dir, binaries, jobs)
        if said:
            sys.exit(f"tests/mutations/run.py: {preset} does not compile without a fault:\n{said[-3000:]}")
        for name in binaries:
            cases = run(find_binary(build_dir, name))
            if cases:
                sys.exit(f"tests/mutations/run.py: {name} of {preset} fails without a fault: {', '.join(cases[:3])}")


def try_fault(fault, jobs):
    """Returns (the cases that fail with the fault, or None if it was not tried, and why not)."""
    why = why_not_tried(fault)
    if why:
        return None, why
    path, build_dir = ROOT / fault["file"], ROOT / "build" / preset_of(fault)
    good = path.read_text(encoding="utf-8")
    try:
        path.write_text(good.replace(fault["find"], fault["put"]), encoding="utf-8")
        said = build(build_dir, fault["binaries"], jobs)
        if said:
            error = re.search(r"\berror: (.*)", said)
            return None, f"it does not compile: {error[1] if error else said[-300:]}"
        for name in fault["binaries"]:
            cases = run(find_binary(build_dir, name))
            if cases:
                return cases, ""
        return [], ""
    finally:
        path.write_text(good, encoding="utf-8")


def row(fault, cases, why):
    if cases is None:
        caught = "not tried: " + " ".join(why.split()).replace("|", "\\|")
    elif not cases:
        caught = "**nothing**"
    else:
        caught = f"`{cases[0].split(' (')[0]}`" + (f" ({cases[0].split(' (')[1]}" if " (" in cases[0] else "")
        caught += f" and {len(cases) - 1} more" if len(cases) > 1 else ""
    return f"| {fault['words']} | `{fault['file']}` | {caught} |\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="only the faults whose file or words contain this")
    parser.add_argument("--preset", default="", help="only the faults for this preset")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N",
                        help="compilers at once (default: as many as there are cores)")
    parser.add_argument("--out", type=Path, help="where the table is written")
    parser.add_argument("--check", action="store_true", help="only say which faults do not apply; build nothing")
    options = parser.parse_args()
    faults = tomllib.loads((ROOT / "tests/mutations/faults.toml").read_text(encoding="utf-8"))["fault"]
    chosen = [fault for fault in faults if options.filter in fault["file"] + fault["words"] and
              options.preset in ("", preset_of(fault))]
    if options.check:
        broken = [(fault, why) for fault in chosen if (why := why_not_applicable(fault))]
        for fault, why in broken:
            print(f"does not apply: {fault['words']} ({fault['file']}): {why}")
        print(f"{len(chosen) - len(broken)} passed, {len(broken)} failed")
        return 1 if broken else 0
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: must be 1 or more")
    chosen.sort(key=lambda fault: (preset_of(fault), os.path.dirname(fault["file"]), fault["file"]))
    without_faults([fault for fault in chosen if not why_not_tried(fault)], options.jobs)
    passed, untried, rows = 0, 0, []
    for fault in chosen:
        cases, why = try_fault(fault, options.jobs)
        passed += bool(cases)
        untried += cases is None
        rows.append(row(fault, cases, why))
        print(f"{'not tried' if cases is None else 'caught' if cases else 'NOT CAUGHT'}: {fault['words']} ({fault['file']})" +
              (f": {why or ', '.join(cases[:3])}" if why or cases else ""), flush=True)
    if options.out:
        more = f", {untried} were not tried" if untried else ""
        options.out.write_text(HEAD.format(count=len(chosen) - untried, caught=passed, more=more) + "".join(rows), encoding="utf-8")
    print(f"{passed} passed, {len(chosen) - passed} failed")
    return 0 if passed == len(chosen) else 1


HEAD = """# Faults that the tests catch

Each row is a small fault that was put into host code, with the first test that fails with it: {caught} of {count} are caught{more}.
The faults are in `tests/mutations/faults.toml`. `tests/mutations/run.py --out docs/measurements/mutations.md` inserts one fault at a
time, builds and runs the test binaries that may detect it, and writes this page. Faults in locks run under the thread sanitizer.

No fault removes the lock under which the engine copies its counters, because the thread sanitizer of g++ 12 could not detect it: g++ does
not instrument that copy.

| fault | file | caught by |
|---|---|---|
"""

if __name__ == "__main__":
    sys.exit(main())
