#!/usr/bin/env python3
"""Tests what scripts say about wrong arguments, missing things and broken files, before they take long. They need no GPU and no
build. The scripts of bench/ have a file of their own (bench_scripts_test.py)."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from script_checks import COUNTS, ROOT, executable, expect, run_all


def test_wheel(work):
    command = [ROOT / "scripts/wheel"]
    for words in (["--build-dir", "--test"], ["--build-dir"], ["--build-dir="]):
        expect(f"wheel {words}", [*command, *words], 2, ["--build-dir needs a directory"])
    expect("wheel --output", [*command, "--output", "--test"], 2, ["--output needs a directory"])
    blocked = work / "file"
    blocked.write_text("")
    for option in ("--build-dir", "--output"):
        expect(f"wheel {option} in a file", [*command, f"--build-dir={work}", option, blocked / "x"], 1,
               ["file/x"], has_not=["a few minutes"])


def test_license_copies(work):
    """Each Python package holds a copy of the project's licence, because wheels are made from the package's folder alone."""
    del work
    whole = (ROOT / "LICENSE").read_bytes()
    for package in ("python", "python/flash_mla_alias"):
        is_equal = (ROOT / package / "LICENSE").read_bytes() == whole
        COUNTS["passed" if is_equal else "failed"] += 1
        if not is_equal:
            print(f"{package}/LICENSE differs from LICENSE")


def test_own_words(work):
    scripts = ROOT / "scripts"
    expect("test --preset", [scripts / "test", "--preset"], 2, ["scripts/test: --preset ''", "cpu-tsan"], has_not=["line "])
    expect("test of no preset", [scripts / "test", "--preset=cpu"], 2, ["--preset 'cpu'", "cpu-release"])
    expect("test --filter", [scripts / "test", "--filter"], 2, ["scripts/test: --filter needs a text"], has_not=["line "])
    expect("test's unknown option", [scripts / "test", "all"], 2, ["'all'", "--clients"])
    expect("soak of no preset", [scripts / "soak", "--preset"], 2, ["scripts/soak: --preset ''", "cpu-debug"])
    expect("demo's unknown option", [scripts / "demo", "--chat"], 2, ["'--chat'", "PROMPT"])
    expect("demo of two words", [scripts / "demo", "brave", "fox"], 2, ["2 arguments", "quotes"])
    expect("fuzz for a word", [scripts / "fuzz", "json"], 2, ["'json'", "whole number"])
    expect("fuzz of nothing", [scripts / "fuzz", "5", "nonsense"], 2, ["'nonsense' is no fuzzer", " tool_call"])
    expect("format's unknown option", [scripts / "format", "--chek"], 2, ["'--chek'", "--check"])
    expect("package of something", [scripts / "package", "all"], 2, ["'all'", "there are no arguments"])
    expect("compile nowhere", [scripts / "compile", work / "none"], 2, ["none' is not configured"])


def test_ci(work):
    """.ci/run runs the stages that it is given, in its own order, and no other."""
    (work / ".ci").mkdir()
    (work / "scripts").mkdir()
    run = shutil.copy(ROOT / ".ci/run", work / ".ci/run")
    executable(work / "scripts/setup", "exit 0\n")
    executable(work / "scripts/format", "echo formatted; exit 3\n")
    executable(work / "scripts/test", "echo tested $CI; echo '7 passed, 0 failed'\n")
    last = "\n7 passed, 1 failed\n"
    expect("ci runs two stages", [run, "test", "format"], 1, ["=== format: scripts/format --check\nformatted\n=== test:", "tested true", last],
           on_stdout=True, has_not=["=== setup", "=== clients", "SKIPPED"])
    expect("ci runs a stage that passes", [run, "setup"], 0, ["=== setup: scripts/setup --ci\n", "\n1 passed, 0 failed\n"], on_stdout=True,
           has_not=["=== format"])
    expect("ci refuses a stage that it does not know", [run, "format", "lint"], 2,
           [".ci/run: 'lint' is no stage; the stages are setup format test clients tokenizer hostile debug tsan fuzz package cuda wheel"])


def test_compile(work):
    command = [ROOT / "scripts/compile", work]
    rules = "rule touch\n command = touch $out\nrule fail\n command = echo no such word; false\n"
    (work / "CMakeCache.txt").write_text("CMAKE_GENERATOR:INTERNAL=Ninja\nCMAKE_MAKE_PROGRAM:FILEPATH=ninja\nCMAKE_PROJECT_NAME:STATIC=x\n")
    files = [f"file{i}" for i in range(40)]
    (work / "build.ninja").write_text(rules + "".join(f"build {name}: touch\n" for name in files) +
                                      "rule wait\n command = sleep 3; touch $out\nbuild slow: wait\n"
                                      "build broken: fail\nbuild few: phony file1 file2\n")
    expect("compile little", [*command, "few"], 0, [], has_not=["compiling", "work to do"])
    expect("compile", [*command, *files], 0, ["38 steps", "compiling: 50 %, 19 of 38 steps", "compiling: 100 %"])
    expect("compile what takes long", ["env", "HADAL_PROGRESS_SECONDS=1", *command, "slow"], 0, ["compiling: 0 %, 0 of "])
    expect("compile nothing", [*command, *files], 0, [], has_not=["compiling", "work to do"])
    expect("compile what fails", [*command, "broken"], 1, ["no such word"], has_not=["compiling"])


def test_notices(work):
    """A build that includes fmt, links PCRE2 and embeds KaTeX needs a notice of each, or nothing is written."""
    katex = Path("/usr/share/javascript/katex/katex.min.css")
    pcre2 = next(Path("/usr/lib").glob("*/libpcre2-8.a"))
    (work / "build.ninja").write_text(
        "rule cc\n command = echo '$out: /usr/include/fmt/core.h /usr/include/stdio.h $more' > $out.d && touch $out\n"
        " depfile = $out.d\n deps = gcc\nrule link\n command = touch $out\nbuild main.o: cc\n"
        f"build program: link main.o {pcre2} | {katex}\nbuild stranger.o: cc\n more = /proc/version\n"
        "build other: link stranger.o\n")
    for package in ("libfmt-dev", "libpcre2-dev", "libssl3", "libjs-katex"):
        (work / "doc" / package).mkdir(parents=True)
        (work / "doc" / package / "copyright").write_text(f"the notice of {package}")

    def command(target, *more):
        return [ROOT / "scripts/notices", "--build-dir", work, "--target", target, "--out", work / "out" / target,
                "--system-notices", work / "doc", *more]

    expect("notices before the build", command("program"), 1, ["no record of what 'program' includes: build it first"])
    subprocess.run(["ninja", "-C", work], check=True, stdout=subprocess.DEVNULL)
    expect("notices", command("program"), 0, ["3 notices"], on_stdout=True)
    contents = (work / "out/program/CONTENTS.txt").read_text()
    is_right = ("libfmt-dev: compiled in: headers: libfmt-dev.txt" in contents and
                "libpcre2-dev: linked: libpcre2-8.a: libpcre2-dev.txt" in contents and
                "libjs-katex: embedded: katex.min.css: libjs-katex.txt" in contents and
                (work / "out/program/libfmt-dev.txt").read_text() == "the notice of libfmt-dev")
    COUNTS["passed" if is_right else "failed"] += 1
    openssl = next(Path("/usr/lib").glob("*/libssl.so.3"))
    expect("notices with a bundled library", command("program", "--bundled", openssl), 0, ["4 notices"], on_stdout=True)
    for package, more in (("libfmt-dev", []), ("libpcre2-dev", []), ("libjs-katex", []), ("libssl3", ["--bundled", openssl])):
        notice = work / "doc" / package / "copyright"
        notice.rename(notice.with_name("away"))
        expect(f"no notice of {package}", command("program", *more), 1, [f"scripts/notices: {package}: {notice} is missing"])
        notice.with_name("away").rename(notice)
    expect("a file of nobody", command("other"), 1, ["/proc/version: no package, no toolkit and no source archive"])


def test_pins(work):
    """The lock file pins exactly what the clients' tests need, and every line of it has a hash."""
    clients = ROOT / "tests/clients"
    lock = (clients / "requirements.lock").read_text()
    locked = set(re.findall(r"^([\w.-]+==[\w.]+)", lock, re.M))
    asked = {re.sub(r"\[.*?\]", "", line) for name in ("requirements.txt", "requirements-alone.txt")
             for line in (clients / name).read_text().splitlines() if line and not line.startswith("#")}
    is_right = asked and asked <= locked and len(locked) == len(re.findall(r"^\S+==.*\\\n    --hash=sha256:\w{64}", lock, re.M))
    COUNTS["passed" if is_right else "failed"] += 1
    if not is_right:
        print(f"tests/clients/requirements.lock lacks {sorted(asked - locked)}, or a hash: run scripts/pin_clients")
    wanted = re.search(r"^(scikit-build-core==\S+) --hash", (ROOT / "python/build-requirements.txt").read_text(), re.M)[1]
    for project in ("python/pyproject.toml", "python/flash_mla_alias/pyproject.toml"):
        COUNTS["passed" if f'requires = ["{wanted}"]' in (ROOT / project).read_text() else "failed"] += 1


def test_skipped(work):
    """A check that did not run is counted as skipped, and is a failure with CI=true."""
    def skips(name, command, count, env, said):
        expect(f"{name} elsewhere", command, 0, [*said, f"0 passed, 0 failed, {count} skipped\n"], {**env, "CI": ""},
               on_stdout=True)
        expect(f"{name} in CI", command, 1, [*said, f"\n0 passed, {count} failed\n"], {**env, "CI": "true"},
               on_stdout=True, has_not=[f"{count} skipped\n"])

    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0", "PIP_TIMEOUT": "5"}
    skips("the page without Chromium", [sys.executable, ROOT / "tests/e2e/page_test.py"], 1,
          {"CHROMIUM": "", "PATH": str(work)}, ["there is no chromium"])
    skips("the tokenizer's reference without an index",
          [sys.executable, ROOT / "tests/text/reference_tokenizer_test.py", "--cache", work / "cache"], 3, nowhere,
          ["could not be fetched"])
    skips("clients without an index", [sys.executable, ROOT / "scripts/client_tests.py", "--filter", "curl", "--venv",
                                       work / "venv"], 1, nowhere, ["the package registry cannot be reached"])

    # The build directory has one GoogleTest program, which skips a case, as the grammar tests do without
    # xgrammar.
    report = {"testsuites": [{"name": "Grammar", "testsuite": [{"name": "Holds", "result": "SKIPPED"}]}]}
    program = executable(work / "text_test", f"echo '{json.dumps(report)}' >\"${{GTEST_OUTPUT#json:}}\"\n")
    (work / "CTestTestfile.cmake").write_text(
        f'add_test(text "{program}")\n'
        f'set_tests_properties(text PROPERTIES ENVIRONMENT "GTEST_OUTPUT=json:{work}/text.json")\n')
    skips("a skipped case", [sys.executable, ROOT / "scripts/run_tests.py", "--build-dir", work, "--only", "text"], 1, {},
          ["SKIPPED Grammar.Holds"])


def test_faults(work):
    """Every fault of tests/mutations applies to the sources as they are; a fault that does not apply is
    named."""
    run = [sys.executable, ROOT / "tests/mutations/run.py", "--check"]
    expect("faults apply", run, 0, [" passed, 0 failed\n"], on_stdout=True)
    tree = work / "tree"
    for path in ("scripts/run_tests.py", "scripts/tally.py", "tests/mutations/run.py", "tests/cache/CMakeLists.txt", "CMakePresets.json"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tree / path)
    (tree / "a.cpp").write_text("x = 1; y = 1;\n")
    fault = '[[fault]]\nwords = "{0}"\nfile = "{1}"\nfind = "{2}"\nput = "2"\nbinaries = ["{3}"]\n'
    (tree / "tests/mutations/faults.toml").write_text("".join(fault.format(*words) for words in (
        ("good", "a.cpp", "x = 1", "cache_test"), ("twice", "a.cpp", "1", "cache_test"), ("no file", "b.cpp", "1", "cache_test"),
        ("no binary", "a.cpp", "x = 1", "b_test"))))
    expect("faults that do not apply", [sys.executable, tree / "tests/mutations/run.py", "--check"], 1,
           ["twice (a.cpp): its text occurs 2 times", "no file (b.cpp): the file does not exist",
            "no binary (a.cpp): no CMakeLists.txt declares the test binary b_test", "1 passed, 3 failed\n"], on_stdout=True)


def test_faults_are_tried(work):
    """The build copies a.cpp and the test reads it. The report says what was caught, what was not, and what was not tried
    and why."""
    tree, tools = work / "tree", work / "tools"
    for path in ("scripts/run_tests.py", "scripts/tally.py", "tests/mutations/run.py", "tests/cache/CMakeLists.txt", "CMakePresets.json"):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tree / path)
    test = tree / "build/cpu-release/tests/cache/cache_test"
    for file, text in ((tools / "ninja", "if grep -q broken a.cpp; then echo 'a.cpp:1: error: a | b'; exit 1; fi; cp a.cpp build"),
                       (test, "grep -q 'x = 1' build/a.cpp")):
        file.parent.mkdir(parents=True, exist_ok=True)
        executable(file, f"cd {tree} || exit 1\n{text}\n")
    (tree / "build/cpu-release/build.ninja").touch()
    for name in ("a.cpp", "dirty.cpp"):
        (tree / name).write_text("x = 1; y = 1;\n")
    fault = '[[fault]]\nwords = "{0}"\nfile = "{1}"\nfind = "{2}"\nput = "{3}"\nbinaries = ["cache_test"]\n'
    (tree / "tests/mutations/faults.toml").write_text("".join(fault.format(*words) for words in (
        ("changed", "dirty.cpp", "x = 1", "x = 2"), ("seen", "a.cpp", "x = 1", "x = 2"), ("unseen", "a.cpp", "y = 1", "y = 2"),
        ("wrong", "a.cpp", "x = 1", "broken"))))
    git = ["git", "-C", tree, "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "a.cpp", "dirty.cpp"], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    (tree / "dirty.cpp").write_text("x = 1; y = 3;\n")
    run = [sys.executable, tree / "tests/mutations/run.py", "--jobs", "1"]
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    expect("faults are tried", [*run, "--out", work / "page.md"], 1,
           ["caught: seen", "NOT CAUGHT: unseen (a.cpp)\n", "not tried: wrong", "1 passed, 3 failed\n"], env=env, on_stdout=True)
    page = (work / "page.md").read_text(encoding="utf-8")
    wanted = ["1 of 2 are caught, 2 were not tried.", "| seen | `a.cpp` | `before the first case` (exit code 1) |",
              "| unseen | `a.cpp` | **nothing** |", "| wrong | `a.cpp` | not tried: it does not compile: a \\| b |",
              "| changed | `dirty.cpp` | not tried: the file has changes that are not committed |"]
    missing = [line for line in wanted if line not in page]
    COUNTS["failed" if missing else "passed"] += 1
    if missing:
        print(f"the page of faults: no {missing} in:\n{page}")
    expect("no jobs", [*run, "--jobs", "0"], 2, ["--jobs 0: must be 1 or more"])
    executable(test, "exit 3\n")
    expect("tests that fail anyway", run, 1, ["cache_test of cpu-release fails without a fault: before the first case (exit code 3)"],
           env=env)


if __name__ == "__main__":
    sys.exit(run_all(globals()))
