#!/usr/bin/env python3
"""Tests the outputs that are generated from the flag table: completions in real shells, manual pages through groff, and
the table as JSON. Shells and groff that are not installed are skipped, except bash."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from command_line import BIN, expect_error, run
from counting import check, finish, skip

COMMANDS = ["serve", "generate", "chat", "bench serving", "eval gsm8k"]


def shell(*words, text, env=None):
    done = subprocess.run(words, input=text.encode(), capture_output=True, timeout=120, check=False, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def complete_in_bash(script, line):
    """Returns what bash offers for the last word of a line, through the completion function that bash itself
    calls."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    text = (f"source {script}\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words) - 1}\nCOMP_LINE='{line}'\n"
            "_hadal 2>/dev/null\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n")
    return shell("bash", "--norc", text=text)[1].split()


def test_bash(work):
    script = work / "hadal.bash"
    rc, out, err = run("--completion", "bash")
    script.write_text(out)
    check("--completion bash prints a script", rc == 0 and out, err)
    rc, _, err = shell("bash", "-n", str(script), text="")
    check("bash finds no fault in it", rc == 0 and not err, err)
    rc, out, _ = shell("bash", "--norc", text=f"source {script}; complete -p hadal\n")
    check("it registers itself", rc == 0 and "-F _hadal hadal" in out, out)
    for line, wanted, unwanted in [
            ("hadal s", ["serve"], ["chat"]),
            ("hadal bench ", ["one-batch", "serving", "offline"], ["moe"]),
            ("hadal serve --max-run", ["--max-running-requests"], ["--max-concurrency"]),
            ("hadal bench serving --max-con", ["--max-concurrency"], []),
            ("hadal serve --kv-cache-dtype fp8", ["fp8_e4m3", "fp8_e5m2"], ["auto"]),
            ("hadal serve --kv-cache-dtype = fp8_e4", ["fp8_e4m3"], []),
            ("hadal eval --da", ["--data"], []),
            ("hadal eval gsm8k --num-q", ["--num-questions"], []),
            ("hadal --completion z", ["zsh"], ["bash"])]:
        offered = complete_in_bash(script, line)
        check(f"bash completes `{line}`", all(w in offered for w in wanted) and not any(w in offered for w in unwanted),
              offered)
    (work / "model.yaml").write_text("")
    offered = complete_in_bash(script, f"hadal serve --config {work}/mo")
    check("bash completes files where a file is wanted", offered == [f"{work}/model.yaml"], offered)
    check("and nothing where a number is", complete_in_bash(script, "hadal serve --port ") == [])


def test_zsh(work):
    script = work / "_hadal"
    script.write_text(run("--completion", "zsh")[1])
    if not shutil.which("zsh"):
        return skip("zsh is not installed", 2)
    rc, _, err = shell("zsh", "-fn", str(script), text="")
    check("zsh finds no fault in its script", rc == 0 and not err, err)
    # A real completion needs a terminal, which zsh's module zpty provides. Each read waits for its pattern.
    text = ("zmodload zsh/zpty; zpty z zsh -f\n"
            f"zpty -w z \"PS1=; autoload -Uz compinit; compinit -u -D; source {script}; echo re''ady\"\n"
            "zpty -r -m z seen '*ready*' || exit 1\n"
            "zpty -w -n z $'hadal serve --max-running-r\\t'\n"
            "zpty -r -m z seen '*equests*' && print -r -- \"completed: $seen\"\n")
    try:
        out = shell("zsh", "-f", text=text)[1]
    except subprocess.TimeoutExpired as error:
        out = str(error)
    check("zsh completes a flag", "completed:" in out, out)
    return None


def test_fish(work):
    script = work / "hadal.fish"
    script.write_text(run("--completion", "fish")[1])
    if not shutil.which("fish"):
        return skip("fish is not installed", 3)
    rc, _, err = shell("fish", "--no-execute", str(script), text="")
    check("fish finds no fault in its script", rc == 0 and not err, err)
    for line, wanted in [("hadal serve --max-running-r", "--max-running-requests"), ("hadal bench ser", "serving"),
                         ("hadal serve --kv-cache-dtype fp8_e4", "fp8_e4m3")]:
        _, out, err = shell("fish", "--no-config", text=f"source {script}\ncomplete -C '{line}'\n")
        check(f"fish completes `{line}`", wanted in out, out + err)
    return None


def test_man_pages():
    if not shutil.which("groff"):
        return skip("groff is not installed", 2)
    for command in ["", *COMMANDS]:
        rc, page, err = run("--man", *command.split())
        check(f"--man {command} prints a page", rc == 0 and page.startswith('.\\"'), err)
        rc, out, err = shell("groff", "-man", "-Tutf8", "-ww", "-rCHECKSTYLE=3", text=page)
        check(f"groff finds no fault in the page of '{command}'", rc == 0 and not err, err)
        name = "-".join(["hadal", *command.split()])
        check(f"the page of '{command}' names itself", name in out.replace("\u2010", "-"), out[:300])
    _, page, _ = run("--man", "serve")
    out = shell("groff", "-man", "-Tascii", "-P-c", "-P-b", "-P-u", text=page)[1]
    check("a page lists the flags with their values", "--kv-cache-dtype" in out and "fp8_e4m3" in out, out[:2000])
    expect_error("--man refuses an unknown command", 2, ["unknown command 'sevre'", "serve"], "--man", "sevre")
    return None


def test_json():
    rc, out, err = run("--flags", "--json")
    table = json.loads(out) if rc == 0 else {}
    check("--flags --json is JSON", rc == 0 and table["flags"], err)
    rows = {(row["name"], row["class"]): row for row in table["flags"]}
    port = next(row for row in table["flags"] if row["name"] == "port" and "serve" in row["commands"])
    check("a row says what the value may be", port["value"] == "integer" and port["min"] == 0 and port["max"] == 65535, port)
    check("an alias names its flag", rows["model", "alias"]["alias_of"] == "model-path")
    check("a refusal says what to do", rows["enable-lora", "refused"]["text"])
    check("every command is there", {"serve", "bench serving"} <= {row["name"] for row in table["commands"]})
    check("so are the names of other engines", any("-ngl" in row["names"] for row in table["other_engines"]))
    names = run("--flags")[1]
    check("the page names every row", all(f"`--{row['name']}" in names for row in table["flags"]))
    expect_error("--flags refuses other words", 2, ["--flags --yaml: may be followed by --json"], "--flags", "--yaml")
    expect_error("--completion refuses other shells", 2, ["--completion tcsh: must be one of bash, zsh, fish"],
                 "--completion", "tcsh")


def main():
    check("the binary is there", pathlib.Path(BIN).exists(), BIN)
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        test_bash(work)
        test_zsh(work)
        test_fish(work)
    test_man_pages()
    test_json()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
