"""Holds what the tests of scripts share: running a command, checking its output, and counting."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COUNTS = {"passed": 0, "failed": 0}


def expect(name, command, code, said, env=None, on_stdout=False, has_not=()):
    """Checks the command's exit code, and words of its output."""
    done = subprocess.run([str(word) for word in command], env={**os.environ, **(env or {})}, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=300, check=False)
    text = done.stdout if on_stdout else done.stderr
    is_right = (done.returncode == code and all(word in text for word in said) and "Traceback" not in done.stderr and
                not any(word in text for word in has_not))
    COUNTS["passed" if is_right else "failed"] += 1
    if not is_right:
        print(f"{name}: exit code {done.returncode}, wanted {code} and {said}: {done.stdout}{done.stderr}")


def executable(path, text):
    path.write_text("#!/bin/sh\n" + text, encoding="utf-8")
    path.chmod(0o755)
    return path


def expect_torch_script(command, work, options, environment, wrong):
    """Checks a script that needs torch on a machine without torch: its help names `options`, and each entry of `wrong`, (a name,
    the arguments, words of the error), is an error."""
    program = command[1].name
    (work / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    expect(f"{program}: --help says what the options are", [*command, "--help"], 0, options, environment, on_stdout=True)
    expect(f"{program}: missing torch is an error", [*command, "--check"], 1, [sys.executable, "torch", "install torch"], environment)
    for name, words, said in wrong:
        expect(f"{program}: {name} is an error", [*command, *words], 2, [said], environment)


def run_all(tests):
    """Calls every function of the dictionary whose name begins with test_, with an empty directory; returns the exit code."""
    for test in [value for name, value in tests.items() if name.startswith("test_")]:
        with tempfile.TemporaryDirectory() as work:
            test(Path(work))
    print(f"{COUNTS['passed']} passed, {COUNTS['failed']} failed")
    return 1 if COUNTS["failed"] else 0
