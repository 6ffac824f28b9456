#!/usr/bin/env python3
"""Tests what the program does with files of a checkpoint that are not what they seem: FIFOs in their place, a pattern that
takes exponential time, and a shard that becomes shorter while a server reads it."""
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

from command_line import TINY, expect_error, run
from counting import check, finish
from serving import Server

SHARDS = sorted(path.name for path in TINY.glob("*.safetensors"))
GENERATE = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}


def copy_of_the_model(folder):
    model = pathlib.Path(folder) / "model"
    model.mkdir()
    for path in TINY.iterdir():
        if path.is_file():
            shutil.copy(path, model)
    return model


def fifos():
    """A FIFO blocks every process that opens it, so a failure shows as a time-out of `run`."""
    for name in ["config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json",
                 "tokenizer_config.json", "chat_template.jinja", *SHARDS]:
        with tempfile.TemporaryDirectory() as folder:
            model = copy_of_the_model(folder)
            (model / name).unlink(missing_ok=True)
            os.mkfifo(model / name)
            expect_error(f"a FIFO as {name}", 1, [f"{name}: is not a regular file but a FIFO"], "generate", "--model-path",
                         model, "--prompt", "a", "--max-new-tokens", 1)


def truncated_shard():
    """Weights are read from the mapping, so the next step after the file has become shorter cannot read them."""
    with tempfile.TemporaryDirectory() as folder:
        model = copy_of_the_model(folder)
        with Server("--chat-template", "v2.5", model=model) as server:
            status, answer = server.post("/generate", GENERATE)
            check("generates before", status == 200, answer)
            sizes = {name: (model / name).stat().st_size for name in SHARDS}
            for name in SHARDS:
                os.truncate(model / name, 4096)
            try:
                server.post("/generate", GENERATE, timeout=120)
                check("no answer from lost weights", False, "the server answered")
            except (OSError, ValueError):
                pass
            check("exit code of a lost file", server.process.wait(120) == 1, server.process.returncode)
            lines = [line for line in server.text().splitlines() if "cannot be read" in line]
            check("one line about the file", len(lines) == 1, server.text()[-2000:])
            found = re.match(r"hadal: error: (.*): byte (\d+) of (\d+) cannot be read: the file was made shorter", lines[0])
            check("names file and byte", found and pathlib.Path(found[1]).name in sizes
                  and int(found[3]) == sizes[pathlib.Path(found[1]).name] and 4096 <= int(found[2]) < int(found[3]), lines)


def hostile_pattern():
    """A pattern that takes exponential time is an error only of the request whose text triggers it."""
    with tempfile.TemporaryDirectory() as folder:
        model = copy_of_the_model(folder)
        file = json.loads((model / "tokenizer.json").read_text())
        file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "(a+)+[!?]"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
        (model / "tokenizer.json").write_text(json.dumps(file))
        with Server("--chat-template", "v2.5", model=model) as server:
            text = "a" * 5000
            for path, field, body in [("/generate", "text", {"text": text}),
                                      ("/v1/completions", "prompt", {"model": "m", "prompt": text}),
                                      ("/v1/chat/completions", "messages",
                                       {"model": "m", "messages": [{"role": "user", "content": text}]}),
                                      ("/tokenize", "prompt", {"prompt": text})]:
                status, answer = server.post(path, body)
                check(f"{path}: refused", status == 400, (status, answer))
                check(f"{path}: names the pattern and the field", 'the pattern "(a+)+[!?]" of tokenizer.json takes more than'
                      in answer["message"] and answer["param"] == field, answer)
            check("another text", server.post("/generate", GENERATE)[0] == 200)
            rc, _, err = run("tokenize", "--model-path", model, "--text", text)
            check("the command line says the same", rc == 1 and "of tokenizer.json takes more than" in err, (rc, err))
            check("exit code", server.stop() == 0, server.text()[-2000:])


def main():
    fifos()
    hostile_pattern()
    truncated_shard()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
