#!/usr/bin/env python3
"""Tests the command lines of SGLang's pages on DeepSeek models (sglang_deepseek_lines.txt): each is accepted, so that only
the model or the server is missing, or is refused by an error of one line that names everything which is not possible
here."""

import os
import pathlib
import sys

from command_line import check, error_lines, run, run_tests

LINES = pathlib.Path(__file__).resolve().parent / "sglang_deepseek_lines.txt"
# These are words of the error of an accepted line when the model, the data or the server is not there.
MISSING = ("deepseek-ai/", "ShareGPT", "127.0.0.1:")


def test_line(work, outcome, words):
    # Nothing is fetched: the hub's cache is an empty folder.
    env = {"HF_HUB_CACHE": str(work / "cache"), "HF_HUB_OFFLINE": "1", "HF_HOME": str(work)}
    on_cpu = ["--device", "cpu"] if words[0] == "launch_server" else []
    rc, _, err = run(*words, *on_cpu, env=env)
    said = error_lines(err)
    line = " ".join(words)
    check(f"one line: {line}", len(said) == 1, err)
    kind, _, wanted = outcome.partition(":")
    if kind == "starts":
        check(f"starts: {line}", rc == 1 and any(name in said[0] for name in MISSING), err)
        return
    names = [name.strip() for name in wanted.split(",")]
    check(f"refused: {line}", rc == 2, err)
    for name in names:
        check(f"the refusal names {name}: {line}", name in said[0], err)


def claims(work, _):
    os.chdir(work)  # because one of the lines writes a file
    count = 0
    for row in LINES.read_text(encoding="utf-8").splitlines():
        if not row or row.startswith("#"):
            continue
        outcome, _, line = row.partition("|")
        test_line(work, outcome.strip(), line.split())
        count += 1
    check("the pages have more than 34 lines", count > 34, count)


if __name__ == "__main__":
    sys.exit(run_tests(claims))
