#!/usr/bin/env python3
"""Runs the `openai` package's Responses API against `hadal serve`: text, events, reasoning, tools, structured output, stored
responses and errors."""
import sys
import typing

import openai
import pydantic

from checks import Server, check, check_equal, finish, questions, raises, run

STORY = "Write a short story about a brave fox."
THINK = {"effort": "high"}
TOOLS = [{"type": "function", "name": "set_alarm", "description": "Set an alarm.", "parameters": {
    "type": "object", "properties": {"hour": {"type": "integer"}, "channel": {"enum": ["mail", "phone"]}},
    "required": ["hour", "channel"], "additionalProperties": False}}]


class Thing(pydantic.BaseModel):
    colour: typing.Literal["red", "green"]
    round: bool


def client_of(server, key="none"):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0)


def ask(client, given, **more):
    return client.responses.create(**{"model": "tiny", "input": given, "temperature": 0, "max_output_tokens": 256, **more})


def answers(client):
    for question in questions("copy", 4):
        response = ask(client, question["messages"])
        check_equal("copy", response.output_text, question["answer"])
        check_equal("form", (response.object, response.status, response.model, response.error), ("response", "completed",
                                                                                               "tiny", None))
        usage = response.usage
        check("usage", usage.input_tokens > 0 and usage.total_tokens == usage.input_tokens + usage.output_tokens and
              usage.input_tokens_details.cached_tokens >= 0, usage)
    text = ask(client, "Hello", instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=4)
    check_equal("echo", (text.instructions, text.metadata, text.max_output_tokens), ("Be brief.", {"a": "b"}, 4))


def streams(client):
    whole = ask(client, STORY, max_output_tokens=40)
    check_equal("length", (whole.status, whole.incomplete_details.reason), ("incomplete", "max_output_tokens"))
    events = list(ask(client, STORY, max_output_tokens=40, stream=True))
    check_equal("numbers", [event.sequence_number for event in events], list(range(len(events))))
    kinds = [event.type for event in events]
    check_equal("begin", kinds[:4], ["response.created", "response.in_progress", "response.output_item.added",
                                     "response.content_part.added"])
    check_equal("end", kinds[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                                    "response.incomplete"])
    check("several deltas", kinds.count("response.output_text.delta") > 10, kinds)
    check_equal("same text", "".join(event.delta for event in events if event.type == "response.output_text.delta"),
                whole.output_text)
    check_equal("the whole in the end", events[-1].response.output_text, whole.output_text)
    question = questions("copy", 1)[0]
    with client.responses.stream(model="tiny", input=question["messages"], temperature=0) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_response()
    check_equal("helper", (final.output_text, seen[-1]), (question["answer"], "response.completed"))


def reasons(client):
    for question in questions("addition", 3):
        response = ask(client, question["messages"], reasoning=THINK, max_output_tokens=1200)
        check_equal("items", [item.type for item in response.output], ["reasoning", "message"])
        check_equal("answer", response.output_text.strip(), question["answer"])
        thought = response.output[0].content[0].text
        check("thought", len(thought) > 20, response.output[0])
        check("reasoning is counted", 0 < response.usage.output_tokens_details.reasoning_tokens <
              response.usage.output_tokens, response.usage)
        events = list(ask(client, question["messages"], reasoning=THINK, max_output_tokens=1200, stream=True))
        check_equal("streamed", "".join(event.delta for event in events if event.type == "response.reasoning_text.delta"),
                    thought)
        again = ask(client, [*question["messages"], *(item.model_dump(exclude_none=True) for item in response.output),
                             {"role": "user", "content": "Thanks"}], max_output_tokens=8)
        check("its own items may be sent back", again.output, again)


def calls(client):
    for choice in ("required", {"type": "function", "name": "set_alarm"}):
        response = ask(client, "Wake me at 7.", tools=TOOLS, tool_choice=choice)
        call = response.output[-1]
        check_equal("call", (call.type, call.name), ("function_call", "set_alarm"))
        check("its schema holds", '"channel"' in call.arguments, call)
        events = list(ask(client, "Wake me at 7.", tools=TOOLS, tool_choice=choice, stream=True))
        streamed = [event for event in events if event.type == "response.function_call_arguments.done"]
        check_equal("streamed", streamed[-1].arguments, call.arguments)
        after = ask(client, [{"role": "user", "content": "Wake me at 7."},
                             *(item.model_dump(exclude_none=True) for item in response.output),
                             *({"type": "function_call_output", "call_id": item.call_id, "output": "done"}
                               for item in response.output if item.type == "function_call")],
                    tools=TOOLS, max_output_tokens=8)
        check("it goes on after the results", after.usage.output_tokens > 0, after)
        stored = ask(client, [{"type": "function_call_output", "call_id": item.call_id, "output": "done"}
                              for item in response.output if item.type == "function_call"],
                     previous_response_id=response.id, tools=TOOLS, max_output_tokens=8)
        check_equal("from the store as well", stored.usage.input_tokens, after.usage.input_tokens)


def structured(client):
    thing = client.responses.parse(model="tiny", input="A thing", text_format=Thing, temperature=0,
                                   max_output_tokens=256).output_parsed
    check("a schema", isinstance(thing, Thing), thing)


def stores(client):
    first = ask(client, "Hello", max_output_tokens=4)
    check_equal("read again", client.responses.retrieve(first.id).output_text, first.output_text)
    more = ask(client, "More", previous_response_id=first.id, max_output_tokens=4)
    counted = client.responses.input_tokens.count(model="tiny", input=[
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "More"}])
    check_equal("the whole conversation", more.usage.input_tokens, counted.input_tokens)
    client.responses.delete(first.id)
    raises("deleted", openai.NotFoundError, lambda: client.responses.retrieve(first.id))
    raises("deleted", openai.BadRequestError, lambda: ask(client, "More", previous_response_id=first.id))
    raises("nothing to cancel", openai.BadRequestError, lambda: client.responses.cancel(more.id))
    unstored = ask(client, "Hello", store=False, max_output_tokens=4)
    raises("store: false", openai.NotFoundError, lambda: client.responses.retrieve(unstored.id))


def bad_requests(client):
    for field, more in (("temperature", {"temperature": -1}), ("max_output_tokens", {"max_output_tokens": 0}),
                        ("background", {"background": True}), ("tools[0].type", {"tools": [{"type": "web_search"}]}),
                        ("truncation", {"truncation": "auto"}), ("conversation", {"conversation": "c"}),
                        ("input[0].content[0].type", {"input": [{"role": "user", "content": [
                            {"type": "input_image", "image_url": "http://x/y.png"}]}]}),
                        ("text.format.type", {"text": {"format": {"type": "xml"}}})):
        error = raises(field, openai.BadRequestError, lambda more=more: ask(client, "Hello", **more))
        if error is not None:
            check(f"{field} is named", error.param == field and error.type == "invalid_request_error", error.body)
    error = raises("too long", openai.BadRequestError, lambda: ask(client, "word " * 9000))
    check("context length", error is not None and "4096" in error.message and error.param == "input", error)


def main():
    with Server("--served-model-name", "tiny") as server:
        client = client_of(server)
        for claim in (answers, streams, reasons, calls, structured, stores, bad_requests):
            run(claim, client)
        check_equal("exit code", server.stop(), 0)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
