"""Writes tests/text/data/dsml_vectors.json: conversations of DeepSeek-V3.2 and what the model's own encoder makes of them.

    python tools/dsml_vectors/make_dsml_vectors.py ENCODER

ENCODER is encoding_dsv32.py of the model's repository; PyPI's sglang ships a copy (srt/entrypoints/openai/). The file is
only run. The texts below are ours. There are three lists in the result:
- "encode": messages, tools and the thinking mode, with the prompt, or null where the encoder refuses them;
- "answer": a text that a model could generate, with the message that the decoder reads from it;
- "refused": such a text without a well-formed call, in which the decoder finds an error.
"""

import argparse
import importlib.util
import json
import pathlib

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests/text/data/dsml_vectors.json"
EOS = "<｜end▁of▁sentence｜>"
BEGIN, END = "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"


def system(text): return {"role": "system", "content": text}
def developer(text): return {"role": "developer", "content": text}
def user(text): return {"role": "user", "content": text}
def tool(text): return {"role": "tool", "content": text}


def assistant(text="", reasoning="", calls=()):
    message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [{"type": "function", "function": {"name": name, "arguments": arguments}}
                                 for name, arguments in calls]
    return message


TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "Sums — or \"concatenates\".", "parameters": {
        "type": "object", "required": ["a"], "properties": {
            "a": {"type": "number", "minimum": -0.5, "default": 1e16}, "list": {"type": "array", "items": {}},
            "größe": {"enum": ["klein\\groß", "L\n", None, True, 1e-7, 100.0, 1000000000000000.0, 12345678901]}}}}},
    {"type": "function", "function": {"parameters": {}, "strict": False, "name": "now"}},
]
NESTED = r'{"a":{"b":[1,2.50,-0,1E5,{"c":null,"d":[]}],"é":"\u00e9\ud83c\udf0a"},"list":[ ],"no":false,"n":-7}'
TEXTS = json.dumps({"plain": "x", "empty": "", "blank": " \n\t ", "lines": "\n a\r\n", "quote\"d": "\"q\" \\ /", "json": "[1]",
                    "tags": "<b>&amp;</b> <｜DSML｜invoke name=\"add\"> </｜DSML｜invoke>", "uni": "日本語 🌊 \u2028 \u007f \u0001"},
                   ensure_ascii=False)
TWICE = '{"a":1,"b":2,"a":[3]}'
BIG = '{"big":123456789012345678901234567890,"f":0.1,"g":1e22,"h":123456789.0}'

# Every conversation is encoded in both modes.
CONVERSATIONS = [
    ([user("Hi")], None),
    ([user("")], None),
    ([system("Be terse."), user("你好 👋")], None),
    ([system(""), user("a"), assistant("b"), user("c")], None),
    ([system("One."), system("Two."), user("Q"), system("Three.")], None),
    ([user("a"), user("b")], None),
    ([user(" \n x \n")], None),
    ([user("1+1?"), assistant("2", "easy"), user("why?")], None),
    ([user("1+1?"), assistant("2", "easy")], None),
    ([user("1+1?"), assistant("<think>inside</think>2"), user("why?")], None),
    ([user("1+1?"), assistant("2")], None),
    ([assistant("I begin.")], None),
    ([assistant("I begin.", "why not")], None),
    ([system("Only me.")], None),
    ([user("Hi")], TOOLS),
    ([system("Be terse."), user("Hi")], TOOLS),
    ([system(""), user("Hi")], TOOLS[1:]),
    ([user("Hi"), system("Late."), user("Again")], TOOLS),
    ([developer("Search."), system("s")], TOOLS),
    ([user("?"), assistant("Let me see.", "I must add.", [("add", '{"a": 1}')]), tool('{"sum": 1}')], TOOLS),
    ([user("?"), assistant("", "", [("add", NESTED)]), tool("")], None),
    ([user("?"), assistant("Now.\n", "", [("now", "{}"), ("add", TEXTS), ("now", " { } ")]), tool("a"), tool("b\n"), tool("c")],
     None),
    ([user("?"), assistant("", "r", [("add", TWICE), ("add", BIG)]), tool("1"), tool("2"), assistant("3", "so"), user("ok")], TOOLS),
    ([user("?"), assistant("", "r1", [("now", "{}")]), tool("noon"), assistant("", "r2", [("now", "{}")]), tool("one"),
      assistant("It is one.", "r3")], TOOLS),
    ([user("?"), assistant("", "r1", [("now", "{}")]), tool("noon"), assistant("", "", [("now", "{}")]), tool("one")], None),
    ([user("?"), assistant("", "r", [("now", "{}"), ("now", "{}")]), tool("noon"), user("only one?")], None),
    ([user("?"), assistant("", "r", [("now", "{}"), ("now", "{}")]), tool("noon")], None),
    ([developer("Search.")], None),
    ([system("s"), developer("Search."), assistant("Found.", "r"), user("More")], TOOLS),
    ([user("a"), developer("Search."), assistant("", "r", [("now", "{}")]), tool("noon")], None),
    ([developer("a"), assistant("b", "r"), developer("c"), assistant("", "r", [("now", "{}")]), tool("d"), developer("e")], None),
    ([user("a"), assistant("", "r", [("now", "{}")]), developer("between"), tool("noon"), user("c")], None),
    # The encoder refuses these, some of them only with thinking.
    ([developer("")], None),
    ([user("a"), tool("b")], None),
    ([user("a"), assistant("b", "r"), tool("c")], None),
    ([user("a"), assistant("b", "r", [("now", "{}")]), tool("c"), tool("d")], None),
    ([user("a"), assistant("b"), assistant("c", "r")], None),
    ([user("a"), assistant("", "r", [("now", "{")])], None),
    ([user("a"), assistant("", "r", [("now", "[1]")])], None),
]


def invoke(name, *parameters):
    body = "\n".join(f'<｜DSML｜parameter name="{key}" string="{kind}">{value}</｜DSML｜parameter>' for key, kind, value in parameters)
    return f'<｜DSML｜invoke name="{name}">\n{body}\n</｜DSML｜invoke>'


def block(*calls):
    return "\n\n" + BEGIN + "\n" + "\n".join(calls) + "\n" + END


# Texts that a model could write; with thinking they begin inside of reasoning.
ANSWERS = [
    (False, "Hello."), (True, "Hm.</think>Hello."), (True, "</think>"), (False, ""),
    (False, "Look:" + block(invoke("add", ("a", "false", "1")))),
    (True, "I add.\n</think>" + block(invoke("add", ("a", "false", " 1.50 "), ("b", "true", " 1 \n")))),
    (False, block(invoke("now"))),
    (False, block(invoke("now"), invoke("add", ("a", "false", '{"x" :[1,\n2], "y":"\\u00e9"}')), invoke("now"))),
    (False, "é " + block(invoke("add", ("größe", "true", 'a"b\\c/\t\u0001\u007f 🌊'), ("", "false", "null"), ('q"q', "true", "")))),
    (False, block(invoke("add", ("t", "true", '<｜DSML｜invoke name="now">\n</｜DSML｜invoke> </｜DSML｜function_calls>')))),
    (False, block(invoke("add", ("s", "false", '"a string"'), ("n", "false", "-0.0"), ("b", "false", "true")))),
]

GOOD = ("a", "false", "1")
REFUSED = [
    block(invoke("add", GOOD, GOOD)),
    block(invoke("add", ("a", "maybe", "1"))),
    block(invoke("add", ("a", "True", "1"))),
    block(invoke("add", GOOD).replace(' string="false"', "")),
    block(invoke("add", GOOD).replace('</｜DSML｜parameter>', "")),
    block(invoke("add", GOOD).replace('name="a" string="false"', 'string="false" name="a"')),
    block(invoke("add", GOOD).replace(' name="add"', "")),
    block(invoke("add", GOOD).replace('</｜DSML｜invoke>', "</invoke>")),
    block(invoke("add", GOOD).replace('</｜DSML｜parameter>', "</｜DSML｜parameter> and")),
    block("add(1)"),
    "x" + block(invoke("add", GOOD).replace("<｜DSML｜parameter", "text <｜DSML｜parameter")),
    block(invoke("add", GOOD))[: -len(END) - 4],
    block(invoke("add", GOOD))[:60],
]


def encode(vendor, messages, tools, thinking):
    messages = json.loads(json.dumps(messages))
    if tools:
        if messages[0]["role"] != "system":
            messages.insert(0, system(""))
        messages[0]["tools"] = tools
    if thinking:  # the encoder fails where it drops messages itself, because it goes on to count them
        messages = vendor.drop_thinking_messages(messages)
    return vendor.encode_messages(messages, "thinking" if thinking else "chat")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", help="the path of encoding_dsv32.py")
    spec = importlib.util.spec_from_file_location("vendor", parser.parse_args().encoder)
    vendor = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(vendor)

    out = {"encode": [], "answer": [], "refused": []}
    answers = list(ANSWERS)
    for messages, tools in CONVERSATIONS:
        for thinking in (False, True):
            try:
                prompt = encode(vendor, messages, tools, thinking)
            except Exception:  # errors of the encoder and of Python's JSON
                prompt = None
            out["encode"].append({"messages": messages, "tools": tools, "thinking": thinking, "prompt": prompt})
            if prompt is None or messages[-1]["role"] != "tool":
                continue
            # The last turn of the assistant, as it was generated, is read back.
            place = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
            before = encode(vendor, messages[:place], tools, thinking)
            turn = encode(vendor, messages[: place + 1], tools, thinking)
            if turn.startswith(before):
                answers.append((thinking, turn[len(before): -len(EOS)]))
    for thinking, text in dict.fromkeys(answers):
        message = vendor.parse_message_from_completion_text(text + EOS, "thinking" if thinking else "chat")
        calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message["tool_calls"]]
        out["answer"].append({"thinking": thinking, "text": text, "reasoning": message["reasoning_content"],
                              "content": message["content"], "calls": calls})
    for text in REFUSED:
        try:
            vendor.parse_message_from_completion_text(text + EOS, "chat")
            raise SystemExit(f"the decoder accepts {text!r}")
        except vendor.DS32EncodingError:
            out["refused"].append(text)
    lines = []
    for name, rows in out.items():
        body = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
        lines.append(f'"{name}":[\n{body}\n]')
    OUT.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    print(f"{OUT.name}: " + ", ".join(f"{len(rows)} {name}" for name, rows in out.items()))


if __name__ == "__main__":
    main()
