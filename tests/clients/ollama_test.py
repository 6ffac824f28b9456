#!/usr/bin/env python3
"""Runs the `ollama` package against `hadal serve`: chats, streams, tools, thinking, formats, options, the model's description,
errors, and keys."""
import asyncio
import json
import sys

import ollama

from checks import Server, check, check_equal, finish, questions, raises, run

STORY = [{"role": "user", "content": "Write a short story about a brave fox."}]
GREEDY = {"temperature": 0}
SCHEMA = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}, "round": {"type": "boolean"}},
          "required": ["colour", "round"], "additionalProperties": False}


def set_alarm(hour: int, minute: int) -> str:
    """Set an alarm.

    Args:
        hour: The hour.
        minute: The minute.
    """
    return f"{hour}:{minute}"


def describes_the_model(client):
    models = client.list().models
    check_equal("one model", [model.model for model in models], ["tiny"])
    check("its size", models[0].size > 1_000_000 and models[0].details.parameter_size.endswith("M"), models)
    check_equal("it runs", [model.model for model in client.ps().models], ["tiny"])
    shown = client.show("tiny")
    check("capabilities", {"completion", "tools", "thinking"} == set(shown.capabilities), shown.capabilities)
    check_equal("context", shown.modelinfo["deepseek2.context_length"], 4096)
    error = raises("another model", ollama.ResponseError, lambda: client.show("huge"))
    check_equal("not found", error and error.status_code, 404)


def chats(client):
    for question in questions("copy", 3):
        answer = client.chat("tiny", question["messages"], options=GREEDY)
        check_equal("copy", answer.message.content, question["answer"])
        check_equal("role and end", (answer.message.role, answer.done, answer.done_reason), ("assistant", True, "stop"))
        check("counts", answer.prompt_eval_count > 0 and answer.eval_count > 0 and answer.total_duration > 0 and
              answer.eval_duration > 0, answer)


def streams(client):
    options = {**GREEDY, "num_predict": 40}
    whole = client.chat("tiny", STORY, options=options)
    parts = list(client.chat("tiny", STORY, options=options, stream=True))
    check("several parts", len(parts) > 10, len(parts))
    check_equal("same text", "".join(part.message.content for part in parts), whole.message.content)
    check_equal("one end", [part.done for part in parts], [False] * (len(parts) - 1) + [True])
    check_equal("reason and tokens", (parts[-1].done_reason, parts[-1].eval_count), ("length", 40))
    prompt = "".join(part.response for part in client.generate("tiny", STORY[0]["content"], options=options, stream=True))
    check_equal("generate is a chat of one message", prompt, whole.message.content)


async def streams_asynchronously(host):
    client = ollama.AsyncClient(host=host)
    text = ""
    async for part in await client.chat("tiny", STORY, options={**GREEDY, "num_predict": 8}, stream=True):
        text += part.message.content
    return text


def thinks(client):
    for question in questions("addition", 2):
        answer = client.chat("tiny", question["messages"], options=GREEDY, think=True)
        check_equal("answer", answer.message.content.strip(), question["answer"])
        check("thoughts", len(answer.message.thinking) > 20 and "</think>" not in answer.message.thinking, answer)
        parts = list(client.chat("tiny", question["messages"], options=GREEDY, think="high", stream=True))
        check_equal("streamed", "".join(part.message.thinking or "" for part in parts), answer.message.thinking)
        plain = client.chat("tiny", question["messages"], options=GREEDY, think=False)
        check("without thoughts", not plain.message.thinking, plain)


def tools_of(question):
    """Returns the tools that the system message of one of the bundled model's questions describes."""
    for part in question["messages"][0]["content"].split("\n### ")[1:]:
        lines = part.split("\n")
        yield {"type": "function", "function": {"name": lines[0], "description": lines[1].removeprefix("Description: "),
                                                "parameters": json.loads(lines[3].removeprefix("Parameters: "))}}


def calls_tools(client):
    for question in questions("tool_call", 3):
        asked = {"model": "tiny", "messages": question["messages"][-1:], "tools": list(tools_of(question)),
                 "think": question["thinking"], "options": {**GREEDY, "num_predict": 200}}
        whole = client.chat(**asked)
        check("it calls", whole.message.tool_calls and not whole.message.content.strip(), whole)
        for call in whole.message.tool_calls or []:
            check(f"call {call.function}", call.function.name in question["answer"] and
                  all(json.dumps(value) in question["answer"] for value in call.function.arguments.values()),
                  question["answer"])
        streamed = [call.function for part in client.chat(**asked, stream=True) for call in part.message.tool_calls or []]
        check_equal("the same calls", [(one.name, one.arguments) for one in streamed],
                    [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or []])
        asked["messages"] = [*asked["messages"], whole.message,
                             {"role": "tool", "tool_name": whole.message.tool_calls[0].function.name, "content": "done"}]
        check("goes on after a result", client.chat(**asked).prompt_eval_count > whole.prompt_eval_count)
    described = client.chat("tiny", [{"role": "user", "content": "Set an alarm."}], tools=[set_alarm],
                            options={**GREEDY, "num_predict": 4})
    check("a Python function is a tool", described.prompt_eval_count > 40, described)


def follows_formats(client):
    answer = client.chat("tiny", [{"role": "user", "content": "Describe a ball."}], format=SCHEMA,
                         options={"num_predict": 200, "seed": 1})
    thing = json.loads(answer.message.content)
    check("schema", thing["colour"] in ("red", "green") and isinstance(thing["round"], bool), thing)
    answer = client.generate("tiny", "Describe a ball.", format="json", options={**GREEDY, "num_predict": 60})
    check("json", answer.response.lstrip().startswith("{"), answer.response)


def honours_options(client):
    text = client.chat("tiny", STORY, options={**GREEDY, "num_predict": 60}).message.content
    stop = text[30:36]
    cut = client.chat("tiny", STORY, options={**GREEDY, "num_predict": 60, "stop": [stop]})
    check_equal("stop", cut.message.content, text[:text.index(stop)])
    seeded = [client.chat("tiny", STORY, options={"seed": seed, "temperature": 1.5, "num_predict": 60}).message.content
              for seed in (3, 3, 4)]
    check("seeds", seeded[0] == seeded[1] != seeded[2], seeded)
    raw = client.generate("tiny", "Once upon a time", raw=True, options={**GREEDY, "num_predict": 8})
    check_equal("raw has no template", raw.prompt_eval_count < 8, True)
    check_equal("loaded", client.generate("tiny", "").done_reason, "load")


def errors(client):
    for name, status, call in (
            ("option", 400, lambda: client.chat("tiny", STORY, options={"temperature": -1})),
            ("context", 400, lambda: client.chat("tiny", STORY, options={"num_ctx": 1_000_000})),
            ("image", 501, lambda: client.chat("tiny", [{**STORY[0], "images": [b"\x89PNG"]}])),
            ("embeddings", 501, lambda: client.embed("tiny", "text")),
            ("pull", 501, lambda: client.pull("huge"))):
        error = raises(name, ollama.ResponseError, call)
        check(f"{name}: status and reason", error and error.status_code == status and len(error.error) > 10, error)


def main():
    with Server("--served-model-name", "tiny") as server:
        host = f"http://127.0.0.1:{server.port}"
        client = ollama.Client(host=host)
        for claim in (describes_the_model, chats, streams, thinks, calls_tools, follows_formats, honours_options, errors):
            run(claim, client)
        check("async", len(asyncio.run(streams_asynchronously(host))) > 8)
        check_equal("nothing is left", server.load()["num_reqs"], 0)
    with Server("--api-key", "secret") as server:
        host = f"http://127.0.0.1:{server.port}"
        error = raises("a key is needed", ollama.ResponseError, ollama.Client(host=host).list)
        check_equal("unauthorised", error and error.status_code, 401)
        check("with it", ollama.Client(host=host, headers={"Authorization": "Bearer secret"}).list().models)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
