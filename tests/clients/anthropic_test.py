#!/usr/bin/env python3
"""Runs the `anthropic` package against `hadal serve`: messages, streams, thinking, tools, stop sequences, counts and errors."""
import asyncio
import sys

import anthropic

from checks import Server, check, check_equal, finish, questions, raises, run, wait_until

HELLO = [{"role": "user", "content": "Hello"}]
STORY = [{"role": "user", "content": "Write a short story about a brave fox."}]
GREEDY = {"temperature": 0}  # the package no longer has a parameter for it, but the API does
THINK = {"type": "enabled", "budget_tokens": 1024}
TOOLS = [{"name": "set_alarm", "description": "Set an alarm.", "input_schema": {
    "type": "object", "properties": {"hour": {"type": "integer"}, "channel": {"enum": ["mail", "phone"]}},
    "required": ["hour", "channel"], "additionalProperties": False}}]


def client_of(server, **more):
    return anthropic.Anthropic(**{"base_url": f"http://127.0.0.1:{server.port}", "api_key": "none", "max_retries": 0, **more})


def ask(client, messages, max_tokens=64, **more):
    return client.messages.create(model="tiny", messages=messages, max_tokens=max_tokens, extra_body=GREEDY, **more)


def texts(message):
    return "".join(block.text for block in message.content if block.type == "text")


def answers(client):
    for question in questions("copy", 4):
        message = ask(client, question["messages"])
        check_equal("copy", texts(message), question["answer"])
        check_equal("form", (message.type, message.role, message.model, message.stop_reason, message.stop_sequence),
                    ("message", "assistant", "tiny", "end_turn", None))
        check("usage", message.usage.input_tokens + message.usage.cache_read_input_tokens > 0 and
              message.usage.output_tokens > 0, message.usage)
        check("identity", message.id.startswith("msg_"), message.id)


def conversation(client):
    """System text counts, blocks count as much as strings, and later turns include earlier ones."""
    plain = client.messages.count_tokens(model="tiny", messages=HELLO).input_tokens
    with_system = client.messages.count_tokens(model="tiny", messages=HELLO, system="Be brief.").input_tokens
    check("system counts", with_system > plain, (with_system, plain))
    blocks = client.messages.count_tokens(model="tiny", messages=[
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]}], system=[{"type": "text", "text": "Be brief."}])
    check_equal("blocks", blocks.input_tokens, with_system)
    turns = HELLO + [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Again"}]
    message = ask(client, turns, max_tokens=4)
    counted = client.messages.count_tokens(model="tiny", messages=turns).input_tokens
    check_equal("counted", message.usage.input_tokens + message.usage.cache_read_input_tokens, counted)
    again = ask(client, turns, max_tokens=4)
    check_equal("counted with a cache", again.usage.input_tokens + again.usage.cache_read_input_tokens, counted)


def streams(client):
    whole = ask(client, STORY, 40)
    check_equal("length", (whole.stop_reason, whole.usage.output_tokens), ("max_tokens", 40))
    kinds, text = [], ""
    for event in ask(client, STORY, 40, stream=True):
        kinds.append(event.type)
        if event.type == "content_block_delta":
            text += event.delta.text
    check_equal("begin", kinds[:3], ["message_start", "content_block_start", "content_block_delta"])
    check_equal("end", kinds[-3:], ["content_block_stop", "message_delta", "message_stop"])
    check("several deltas", kinds.count("content_block_delta") > 10, kinds)
    check_equal("same text", text, texts(whole))
    with client.messages.stream(model="tiny", messages=STORY, max_tokens=40, extra_body=GREEDY) as stream:
        joined = "".join(stream.text_stream)
        final = stream.get_final_message()
    check_equal("helper", (joined, texts(final), final.stop_reason, final.usage.output_tokens),
                (texts(whole), texts(whole), "max_tokens", 40))


def thinks(client):
    for question in questions("addition", 3):
        message = ask(client, question["messages"], 1200, thinking=THINK)
        check_equal("blocks", [block.type for block in message.content], ["thinking", "text"])
        check_equal("answer", message.content[1].text.strip(), question["answer"])
        check("thought", len(message.content[0].thinking) > 20 and message.content[0].signature, message)
        with client.messages.stream(model="tiny", messages=question["messages"], max_tokens=1200, extra_body=GREEDY,
                                    thinking=THINK) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_message()
        check("events", {"thinking", "signature", "text"} <= set(kinds), set(kinds))
        check_equal("streamed", [(block.type, getattr(block, "thinking", None) or block.text) for block in final.content],
                    [(block.type, getattr(block, "thinking", None) or block.text) for block in message.content])
        again = ask(client, question["messages"] + [{"role": "assistant", "content": message.content},
                                                    {"role": "user", "content": "Thanks"}], 8)
        check("its own blocks may be sent back", again.content, again)


def calls(client):
    for choice in ({"type": "any"}, {"type": "tool", "name": "set_alarm"}, {"type": "any", "disable_parallel_tool_use": True}):
        message = ask(client, [{"role": "user", "content": "Wake me at 7."}], 256, tools=TOOLS, tool_choice=choice)
        call = message.content[-1]
        check_equal("reason", (message.stop_reason, call.type, call.name), ("tool_use", "tool_use", "set_alarm"))
        check("its schema holds", isinstance(call.input["hour"], int) and call.input["channel"] in ("mail", "phone"), call)
        with client.messages.stream(model="tiny", messages=[{"role": "user", "content": "Wake me at 7."}], max_tokens=256,
                                    extra_body=GREEDY, tools=TOOLS, tool_choice=choice) as stream:
            final = stream.get_final_message()
        check_equal("streamed", [(block.name, block.input) for block in final.content if block.type == "tool_use"],
                    [(block.name, block.input) for block in message.content if block.type == "tool_use"])
        result = {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "done"}]}
            for block in message.content if block.type == "tool_use"]}
        after = ask(client, [{"role": "user", "content": "Wake me at 7."},
                             {"role": "assistant", "content": message.content}, result], 8, tools=TOOLS)
        check("it goes on after the results", after.usage.output_tokens > 0, after)
    none = ask(client, HELLO, 8, tools=TOOLS, tool_choice={"type": "none"})
    check("none", all(block.type == "text" for block in none.content), none)


def stops(client):
    text = texts(ask(client, STORY, 40))
    word = text.split()[3]
    message = ask(client, STORY, 40, stop_sequences=["never said", word])
    check_equal("stopped", (message.stop_reason, message.stop_sequence), ("stop_sequence", word))
    check_equal("without it", texts(message), text[:text.index(word)])


def structured(client):
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"],
              "additionalProperties": False}
    message = ask(client, HELLO, 64, output_config={"format": {"type": "json_schema", "schema": schema}})
    check("its schema holds", texts(message).replace(" ", "").replace("\n", "") in
          ('{"colour":"red"}', '{"colour":"green"}'), message)


def bad_requests(client):
    for field, more in (("max_tokens", {"max_tokens": 0}), ("messages", {"messages": []}),
                        ("temperature", {"extra_body": {"temperature": -1.0}}), ("top_p", {"extra_body": {"top_p": 2.0}}),
                        ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
                        ("tool_choice.name", {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "nobody"}}),
                        ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [
                            {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}]}]}),
                        ("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": 5}})):
        error = raises(field, anthropic.BadRequestError, lambda more=more: client.messages.create(
            **{"model": "tiny", "messages": HELLO, "max_tokens": 8, **more}))
        if error is not None:
            body = error.body
            check(f"{field} is named in Anthropic's form", set(body) == {"type", "error"} and body["type"] == "error" and
                  body["error"]["type"] == "invalid_request_error" and body["error"]["message"].startswith(field), body)
    error = raises("too long", anthropic.BadRequestError, lambda: ask(client, [{"role": "user", "content": "word " * 9000}]))
    check("context length", error is not None and "4096" in str(error), error)
    raises("no such path", anthropic.NotFoundError, client.messages.batches.list)
    check("still serving", ask(client, HELLO, 4).content)


def cancels(client, server):
    stream = client.messages.create(model="tiny", messages=STORY, max_tokens=3000, stream=True,
                                    extra_body={"ignore_eos": True})
    for _, event in zip(range(5), stream):
        check("it streams", event.type, event)
    stream.close()
    check("nothing runs", wait_until(lambda: server.load()["num_reqs"] == 0), server.load())


def asynchronous(server):
    async def many():
        async with anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none",
                                            max_retries=0) as client:
            async def one(question):
                async with client.messages.stream(model="tiny", messages=question["messages"], max_tokens=64,
                                                  extra_body=GREEDY) as stream:
                    return await stream.get_final_text()

            asked = questions("copy", 12)
            check_equal("together", await asyncio.gather(*map(one, asked)), [question["answer"] for question in asked])

    asyncio.run(many())


def keys():
    with Server("--api-key", "secret", "--served-model-name", "tiny") as server:
        error = raises("a wrong key", anthropic.AuthenticationError, lambda: ask(client_of(server, api_key="other"), HELLO, 2))
        check("in Anthropic's form", error is not None and error.body["error"]["type"] == "authentication_error", error)
        check("x-api-key", ask(client_of(server, api_key="secret"), HELLO, 2).content)
        check("Authorization", ask(client_of(server, api_key=None, auth_token="secret"), HELLO, 2).content)


def limits():
    with Server("--rate-limit", "1,0", "--served-model-name", "tiny") as server:
        client = client_of(server)
        ask(client, HELLO, 2)
        error = raises("too often", anthropic.RateLimitError, lambda: [ask(client, HELLO, 2) for _ in range(50)])
        check("in Anthropic's form", error is not None and error.body["error"]["type"] == "rate_limit_error" and
              int(error.response.headers["retry-after"]) > 0, error)


def main():
    with Server("--served-model-name", "tiny") as server:
        client = client_of(server)
        for claim in (answers, conversation, streams, thinks, calls, stops, structured, bad_requests):
            run(claim, client)
        run(cancels, client, server)
        run(asynchronous, server)
        check_equal("exit code", server.stop(), 0)
    run(keys)
    run(limits)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
