#!/usr/bin/env python3
"""Runs LiteLLM against `hadal serve`, as an OpenAI server (chat and completions) and as an Ollama server."""
import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its table of prices is not fetched
import litellm  # noqa: E402  pylint: disable=wrong-import-position

from checks import Server, check, check_equal, finish, questions, raises, run  # noqa: E402

STORY = [{"role": "user", "content": "Write a short story about a brave fox."}]
TOOLS = [{"type": "function", "function": {"name": "set_light", "description": "Switch the light.", "parameters": {
    "type": "object", "properties": {"on": {"type": "boolean"}, "colour": {"enum": ["red", "green"]}},
    "required": ["on", "colour"], "additionalProperties": False}}}]


def as_openai(server, **more):
    return {"model": "hosted_vllm/tiny", "api_base": f"http://127.0.0.1:{server.port}/v1", "temperature": 0, "num_retries": 0,
            "max_retries": 0, **more}


def as_ollama(server, **more):
    return {"model": "ollama_chat/tiny", "api_base": f"http://127.0.0.1:{server.port}", "temperature": 0, **more}


def chats(server):
    for question in questions("copy", 2):
        for how in (as_openai, as_ollama):
            answer = litellm.completion(messages=question["messages"], **how(server))
            check_equal(f"copy {how.__name__}", answer.choices[0].message.content, question["answer"])
            check_equal("end", answer.choices[0].finish_reason, "stop")
            check("usage", answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0, answer.usage)


def streams(server):
    texts = []
    for how in (as_openai, as_ollama):
        parts = list(litellm.completion(messages=STORY, max_tokens=24, stream=True, **how(server)))
        check(f"several parts {how.__name__}", len(parts) > 8, len(parts))
        texts.append("".join(part.choices[0].delta.content or "" for part in parts))
    whole = litellm.completion(messages=STORY, max_tokens=24, **as_openai(server)).choices[0]
    check_equal("same text", texts, [whole.message.content] * 2)
    check_equal("length", whole.finish_reason, "length")
    answer = asyncio.run(litellm.acompletion(messages=STORY, max_tokens=24, **as_openai(server)))
    check_equal("asynchronously", answer.choices[0].message.content, whole.message.content)
    text = litellm.text_completion(prompt="Once upon a time", max_tokens=8, **as_openai(server))
    check("completions", len(text.choices[0].text) > 8, text)


def calls_tools(server):
    answer = litellm.completion(messages=[{"role": "user", "content": "Switch the light on."}], tools=TOOLS, tool_choice="required",
                                max_tokens=200, **as_openai(server))
    call = answer.choices[0].message.tool_calls[0].function
    check("a call", call.name == "set_light" and set(json.loads(call.arguments)) == {"on", "colour"}, call)


def structured(server):
    schema = {"type": "object", "properties": {"round": {"type": "boolean"}}, "required": ["round"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}
    for how in (as_openai, as_ollama):
        answer = litellm.completion(messages=STORY, response_format=form, max_tokens=400, **how(server))
        check(f"schema {how.__name__}", isinstance(json.loads(answer.choices[0].message.content)["round"], bool), answer)


def errors(server):
    error = raises("a wrong value", litellm.BadRequestError,
                   lambda: litellm.completion(messages=STORY, max_tokens=100_000, **as_openai(server)))
    check("its field", error and "max_tokens" in str(error), error)


def main():
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    with Server("--served-model-name", "tiny") as server:
        for claim in (chats, streams, calls_tools, structured, errors):
            run(claim, server)
        check_equal("nothing is left", server.load()["num_reqs"], 0)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
