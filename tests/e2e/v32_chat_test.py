#!/usr/bin/env python3
"""Tests the chat format of a V3.2 checkpoint of random weights. Without a template the format follows from the
architecture; a template takes precedence."""
import json
import shutil
import sys

from command_line import TINY, run, run_tests
from counting import check
from serving import Server
from sparse_attention_test import SMALL, tool

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "convert", "parameters": {
    "type": "object", "properties": {"unit": {"enum": ["c", "f"]}, "value": {"enum": [1, 2.5, None]}},
    "required": ["unit", "value"]}}}]


def parsers(server):
    info = json.loads(server.request("GET", "/server_info")[2])
    return info["reasoning_parser"], info["tool_call_parser"]


def without_a_template(model):
    with Server("--device", "cpu", model=model) as server:
        check("the architecture chooses the format", parsers(server) == ("deepseek-v3", "deepseekv32"), parsers(server))
        for choice, more in (("required", {}), ({"type": "function", "function": {"name": "convert"}}, {"seed": 8})):
            status, answer = server.post(CHAT, {
                "messages": [{"role": "developer", "content": "Convert."}], "tools": TOOLS, "tool_choice": choice,
                "parallel_tool_calls": False, "max_tokens": 900, "temperature": 1, "seed": 7, **more})
            check("a forced call is answered", status == 200, answer)
            found = answer["choices"][0]
            calls = [json.loads(call["function"]["arguments"]) for call in found["message"]["tool_calls"] or []]
            check("a forced call fits its schema", found["finish_reason"] == "tool_calls" and len(calls) == 1
                  and calls[0]["unit"] in ("c", "f") and calls[0]["value"] in (1, 2.5, None), found)
        status, error = server.post(CHAT, {"messages": [{"role": "developer", "content": ""}], "max_tokens": 1})
        check("an error names the message", status == 400 and "messages[0].content" in error["error"]["message"], error)
        check("the server ends in order", server.stop() == 0, server.text())
    code, _, err = run("generate", "--model-path", model, "--device", "cpu", "--chat", "--thinking", "--prompt", "Hi",
                       "--max-new-tokens", 2)
    check("generate --chat needs no template", code == 0, err)


def with_a_template(model):
    with Server("--device", "cpu", model=model) as server:
        check("a template comes first", parsers(server) == ("deepseek-v3", "deepseekv31"), parsers(server))
        check("the server ends in order", server.stop() == 0, server.text())


def claims(work, _model):
    model = work / "v32"
    tool("make_checkpoint", "--preset", "v3.2", "--output", model, "--seed", 3, "--override", json.dumps(SMALL))
    config = json.loads((TINY / "tokenizer_config.json").read_text())
    shutil.copy(TINY / "tokenizer.json", model)
    check("the bundled tokenizer has a template", "chat_template" in config)
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    with_a_template(model)
    del config["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    without_a_template(model)


if __name__ == "__main__":
    sys.exit(run_tests(claims))
