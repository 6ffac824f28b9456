#!/usr/bin/env python3
"""Runs LangChain's ChatOpenAI against `hadal serve`: messages, streams, batches, tools, structured output, usage, errors."""
import asyncio
import json
import sys
import typing

import openai
import pydantic
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

from checks import Server, check, check_equal, finish, questions, raises, run


class Thing(pydantic.BaseModel):
    """A thing, described."""
    colour: typing.Literal["red", "green"]
    round: bool


def model_of(server, **more):
    return ChatOpenAI(model="tiny", base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", temperature=0,
                      max_retries=0, **more)


def answers(server):
    model = model_of(server)
    for question in questions("copy", 3):
        answer = model.invoke([HumanMessage(question["messages"][0]["content"])])
        check_equal("copy", answer.content, question["answer"])
        check_equal("end", answer.response_metadata["finish_reason"], "stop")
        usage = answer.usage_metadata
        check("usage", usage["input_tokens"] > 0 and usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"],
              usage)
    several = model.batch([question["messages"][0]["content"] for question in questions("copy", 4)])
    check_equal("a batch", [answer.content for answer in several], [question["answer"] for question in questions("copy", 4)])


def streams(server):
    model = model_of(server, max_tokens=24, stream_usage=True)
    messages = [SystemMessage("You tell stories."), HumanMessage("Write a short story about a brave fox.")]
    whole = model.invoke(messages)
    parts = list(model.stream(messages))
    check("several parts", len(parts) > 8, len(parts))
    check_equal("same text", "".join(part.content for part in parts), whole.content)
    total = parts[0]
    for part in parts[1:]:
        total += part
    check_equal("usage", total.usage_metadata["output_tokens"], 24)
    chain = ChatPromptTemplate.from_messages([("system", "You tell stories."), ("human", "{wish}")]) | model | StrOutputParser()
    check_equal("a chain", chain.invoke({"wish": messages[1].content}), whole.content)
    check_equal("asynchronously", asyncio.run(chain.ainvoke({"wish": messages[1].content})), whole.content)


def calls_tools(server):
    def set_light(on: bool, colour: typing.Literal["red", "green"]) -> str:
        """Switch the light."""
        return f"{on} {colour}"

    wish = "Switch the light on."
    model = model_of(server, max_tokens=200).bind_tools([set_light], tool_choice="set_light")
    answer = model.invoke(wish)
    check_equal("one call", [call["name"] for call in answer.tool_calls], ["set_light"])
    call = answer.tool_calls[0]
    check("arguments", isinstance(call["args"]["on"], bool) and call["args"]["colour"] in ("red", "green"), call)
    total = None
    for part in model.stream(wish):
        total = part if total is None else total + part
    check_equal("streamed", [one["args"] for one in total.tool_calls], [call["args"]])
    back = model_of(server, max_tokens=8).bind_tools([set_light]).invoke(
        [HumanMessage(wish), AIMessage("", tool_calls=[call]), ToolMessage("done", tool_call_id=call["id"])])
    check("it goes on after the result", back.usage_metadata["input_tokens"] > answer.usage_metadata["input_tokens"], back)


def structured(server):
    model = model_of(server, max_tokens=200)
    for method in ("json_schema", "function_calling"):
        thing = model.with_structured_output(Thing, method=method).invoke("Describe a ball.")
        check(f"by {method}", isinstance(thing, Thing), thing)
    answer = model.bind(response_format={"type": "json_object"}, max_tokens=60).invoke("Describe a ball as JSON.")
    check("an object", answer.content.lstrip().startswith("{"), answer.content)
    schema = Thing.model_json_schema()
    thing = model.with_structured_output(schema, method="json_schema").invoke("Describe a ball.")
    check("by a schema", set(thing) == {"colour", "round"}, json.dumps(thing))


def errors(server):
    error = raises("a long answer", openai.BadRequestError, lambda: model_of(server, max_tokens=100_000).invoke("Hello"))
    check("its field", error and "max_completion_tokens" in str(error) or "max_tokens" in str(error), error)


def main():
    with Server("--served-model-name", "tiny") as server:
        for claim in (answers, streams, calls_tools, structured, errors):
            run(claim, server)
        check_equal("nothing is left", server.load()["num_reqs"], 0)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
