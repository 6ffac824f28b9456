#!/usr/bin/env python3
"""Runs the `openai` package against `hadal serve`: sync, async, streams, tools, structured output, log-probabilities,
errors and cancellation."""
import asyncio
import concurrent.futures
import enum
import json
import math
import re
import subprocess
import sys
import typing

import openai
import pydantic

from checks import ROOT, Server, check, check_equal, finish, questions, raises, run, wait_until

HELLO = [{"role": "user", "content": "Hello"}]
STORY = [{"role": "user", "content": "Write a short story about a brave fox."}]
THINK = {"chat_template_kwargs": {"thinking": True}}

TOOLS = [{"type": "function", "function": {
    "name": "send_message", "description": "Send a message to a person.",
    "parameters": {"type": "object",
                   "properties": {"recipient": {"type": "string"}, "priority": {"type": "integer"},
                                  "channel": {"enum": ["mail", "phone"]}},
                   "required": ["recipient", "priority", "channel"], "additionalProperties": False}}},
         {"type": "function", "function": {
             "name": "set_alarm", "description": "Set an alarm.",
             "parameters": {"type": "object",
                            "properties": {"hour": {"type": "integer"}, "minute": {"type": "integer"}},
                            "required": ["hour", "minute"], "additionalProperties": False}}}]


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Thing(pydantic.BaseModel):
    """Every field is bounded, because a small model that writes what it was never trained on could otherwise write digits
    for ever."""
    colour: Colour
    round: bool
    size: typing.Literal[1, 20, 300]
    parts: list[Colour] = pydantic.Field(max_length=3)


def lists_models(client):
    models = client.models.list().data
    check_equal("one model", [model.id for model in models], ["tiny"])
    check_equal("retrieve", client.models.retrieve("tiny").id, "tiny")
    raises("retrieve another", openai.NotFoundError, lambda: client.models.retrieve("huge"))


def chats(client):
    for question in questions("copy", 4):
        answer = client.chat.completions.create(model="tiny", messages=question["messages"], temperature=0)
        choice = answer.choices[0]
        check_equal("copy", choice.message.content, question["answer"])
        check_equal("finish", choice.finish_reason, "stop")
        check_equal("role", choice.message.role, "assistant")
        usage = answer.usage
        check("usage", usage.prompt_tokens > 0 and usage.completion_tokens > 0 and
              usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)
        check("identity", answer.id and answer.object == "chat.completion" and answer.model == "tiny" and
              answer.created > 1_600_000_000, answer)


def thinks(client):
    for question in questions("addition", 3):
        answer = client.chat.completions.create(model="tiny", messages=question["messages"], temperature=0,
                                                extra_body=THINK)
        message = answer.choices[0].message
        check_equal("answer", message.content.strip(), question["answer"])
        check("reasoning", len(message.reasoning_content) > 20 and "</think>" not in message.reasoning_content, message)
        thought = content = ""
        for chunk in client.chat.completions.create(model="tiny", messages=question["messages"], temperature=0,
                                                    stream=True, extra_body=THINK):
            delta = chunk.choices[0].delta
            check("thought before the answer", not (content and getattr(delta, "reasoning_content", None)), chunk)
            thought += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
        check_equal("streamed", (thought, content), (message.reasoning_content, message.content))


def streams(client):
    whole = client.chat.completions.create(model="tiny", messages=STORY, temperature=0, max_tokens=40)
    check_equal("length", whole.choices[0].finish_reason, "length")
    check_equal("40 tokens", whole.usage.completion_tokens, 40)
    chunks = list(client.chat.completions.create(model="tiny", messages=STORY, temperature=0, max_tokens=40,
                                                 stream=True, stream_options={"include_usage": True}))
    check("several chunks", len(chunks) > 10, len(chunks))
    check_equal("role first", chunks[0].choices[0].delta.role, "assistant")
    check_equal("same text", "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]),
                whole.choices[0].message.content)
    check_equal("one id", len({chunk.id for chunk in chunks}), 1)
    check_equal("one reason", [chunk.choices[0].finish_reason for chunk in chunks[:-1] if
                               chunk.choices[0].finish_reason], ["length"])
    check_equal("usage last", (chunks[-1].choices, chunks[-1].usage.completion_tokens,
                               chunks[-1].usage.prompt_tokens), ([], 40, whole.usage.prompt_tokens))
    check("usage only there", all(chunk.usage is None for chunk in chunks[:-1]))
    plain = list(client.chat.completions.create(model="tiny", messages=STORY, temperature=0, max_tokens=4, stream=True))
    check("no usage unasked", all(chunk.usage is None and chunk.choices for chunk in plain), plain)


def streams_with_helper(client):
    question = questions("copy", 1)[0]
    with client.chat.completions.stream(model="tiny", messages=question["messages"], temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    check("events", {"chunk", "content.delta", "content.done"} <= set(kinds), set(kinds))
    check_equal("final", final.choices[0].message.content, question["answer"])


def several_choices(client):
    answer = client.chat.completions.create(model="tiny", messages=STORY, temperature=1.0, n=3, seed=5, max_tokens=12)
    check_equal("indices", [choice.index for choice in answer.choices], [0, 1, 2])
    check("they differ", len({choice.message.content for choice in answer.choices}) > 1, answer)
    again = client.chat.completions.create(model="tiny", messages=STORY, temperature=1.0, n=3, seed=5, max_tokens=12)
    check_equal("a seed repeats", [choice.message.content for choice in again.choices],
                [choice.message.content for choice in answer.choices])
    texts = {}
    for chunk in client.chat.completions.create(model="tiny", messages=STORY, temperature=1.0, n=3, seed=5,
                                                max_tokens=12, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    check_equal("streamed", texts, {choice.index: choice.message.content for choice in answer.choices})


def stops(client):
    whole = client.chat.completions.create(model="tiny", messages=STORY, temperature=0, max_tokens=60)
    text = whole.choices[0].message.content
    stop = text[30:36]
    for value in (stop, [stop, "never there"]):
        cut = client.chat.completions.create(model="tiny", messages=STORY, temperature=0, max_tokens=60, stop=value)
        check_equal("cut before the stop", cut.choices[0].message.content, text[:text.index(stop)])
        check_equal("reason", cut.choices[0].finish_reason, "stop")
        check("fewer tokens", cut.usage.completion_tokens < 60, cut.usage)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(
        model="tiny", messages=STORY, temperature=0, max_tokens=60, stop=stop, stream=True))
    check_equal("streamed", streamed, text[:text.index(stop)])


def logprobs(client):
    answer = client.chat.completions.create(model="tiny", messages=HELLO, temperature=0, max_tokens=8, logprobs=True,
                                            top_logprobs=4)
    entries = answer.choices[0].logprobs.content
    check_equal("one entry per token", len(entries), answer.usage.completion_tokens)
    for entry in entries:
        check("greedy takes the best", entry.logprob <= 0 and len(entry.top_logprobs) == 4 and
              math.isclose(entry.logprob, entry.top_logprobs[0].logprob, abs_tol=1e-6), entry)
        values = [top.logprob for top in entry.top_logprobs]
        check("in order", values == sorted(values, reverse=True) and sum(map(math.exp, values)) < 1 + 1e-5, entry)
        check("bytes spell the token", bytes(entry.bytes).decode(errors="replace") == entry.token, entry)
    streamed = []
    for chunk in client.chat.completions.create(model="tiny", messages=HELLO, temperature=0, max_tokens=8,
                                                logprobs=True, top_logprobs=4, stream=True):
        for choice in chunk.choices:
            streamed += choice.logprobs.content if choice.logprobs else []
    check_equal("streamed", [(entry.token, entry.logprob) for entry in streamed],
                [(entry.token, entry.logprob) for entry in entries])


def sampling(client):
    def text(**more):
        return client.chat.completions.create(model="tiny", messages=STORY, max_tokens=16,
                                              **more).choices[0].message.content

    greedy = text(temperature=0)
    check_equal("top_p towards 0", text(temperature=1, top_p=1e-6), greedy)
    check_equal("top_k 1", text(temperature=1, extra_body={"top_k": 1}), greedy)
    check_equal("seed", text(temperature=1, seed=7), text(temperature=1, seed=7))
    check("another seed", len({text(temperature=1.5, seed=seed) for seed in range(5)}) > 1)
    first = client.chat.completions.create(model="tiny", messages=STORY, temperature=0, max_tokens=1, logprobs=True)
    token = client.post("/tokenize", body={"model": "tiny", "prompt": first.choices[0].message.content,
                                           "add_special_tokens": False}, cast_to=object)["tokens"]
    check("logit_bias", len(token) == 1 and not text(temperature=0, logit_bias={str(token[0]): -100}).startswith(
        first.choices[0].message.content), token)


def check_call(call, name=None):
    check("id and type", call.id and call.type == "function", call)
    check("name", call.function.name == name if name else call.function.name in ("send_message", "set_alarm"), call)
    arguments = json.loads(call.function.arguments)
    if call.function.name == "set_alarm":
        check("arguments", list(arguments) == ["hour", "minute"] and
              all(isinstance(value, int) for value in arguments.values()), arguments)
    else:
        check("arguments", set(arguments) == {"recipient", "priority", "channel"} and
              arguments["channel"] in ("mail", "phone") and isinstance(arguments["priority"], int), arguments)


def calls_when_told(client):
    named = {"type": "function", "function": {"name": "set_alarm"}}
    messages = [{"role": "user", "content": "Set an alarm at 7:30, and tell Anna by mail with priority 2."}]
    for extra in ({}, THINK):
        for choice in ("required", named):
            answer = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, tool_choice=choice,
                                                    temperature=0, max_tokens=400, extra_body=extra)
            message = answer.choices[0].message
            check("calls", message.tool_calls and answer.choices[0].finish_reason in ("tool_calls", "stop"), answer)
            if choice == "required":
                check_equal("reason", answer.choices[0].finish_reason, "tool_calls")
            for call in message.tool_calls or []:
                check_call(call, "set_alarm" if choice is named else None)
            streamed = {}
            for chunk in client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS,
                                                        tool_choice=choice, temperature=0, max_tokens=400, stream=True,
                                                        extra_body=extra):
                for call in chunk.choices[0].delta.tool_calls or []:
                    name, arguments = streamed.get(call.index, ("", ""))
                    streamed[call.index] = (name + (call.function.name or ""), arguments +
                                            (call.function.arguments or ""))
            check_equal("streamed", list(streamed.values()), [(call.function.name, call.function.arguments)
                                                              for call in message.tool_calls or []])
    one = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, tool_choice="required",
                                         parallel_tool_calls=False, temperature=0, max_tokens=400)
    check_equal("one call", len(one.choices[0].message.tool_calls), 1)
    none = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, tool_choice="none",
                                          temperature=0, max_tokens=32)
    check("none", not none.choices[0].message.tool_calls and none.choices[0].message.content, none)


def calls_by_itself(client):
    """The model calls tools on its own in the format on which it was trained: the name and the arguments are right, and
    so is the answer to a result."""
    for question in questions("tool_call", 4):
        system, user = question["messages"][0]["content"], question["messages"][-1]
        tools = []
        for part in system.split("\n### ")[1:]:
            lines = part.split("\n")
            tools.append({"type": "function", "function": {
                "name": lines[0], "description": lines[1].removeprefix("Description: "),
                "parameters": json.loads(lines[3].removeprefix("Parameters: "))}})
        answer = client.chat.completions.create(model="tiny", messages=[user], tools=tools, temperature=0,
                                                max_tokens=200, extra_body={"chat_template_kwargs": {
                                                    "thinking": question["thinking"]}})
        choice = answer.choices[0]
        check_equal("reason", choice.finish_reason, "tool_calls")
        for call in choice.message.tool_calls or []:
            check(f"call {call.function}", call.function.name in question["answer"] and
                  all(json.dumps(value) in question["answer"] for value in
                      json.loads(call.function.arguments).values()), question["answer"])
        check("no text", not (choice.message.content or "").strip(), choice)
        back = client.chat.completions.create(
            model="tiny", tools=tools, temperature=0, max_tokens=16,
            messages=[user, choice.message, {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id,
                                             "content": "done"}])
        check("goes on after a result", back.usage.prompt_tokens > answer.usage.prompt_tokens, back.usage)


def structured(client):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                               "age": {"type": "integer", "minimum": 0, "maximum": 150}},
              "required": ["name", "age"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    for temperature in (0, 1):
        answer = client.chat.completions.create(model="tiny", messages=HELLO, temperature=temperature, seed=3,
                                                max_tokens=400, response_format=form)
        value = json.loads(answer.choices[0].message.content)
        check("as the schema says", set(value) == {"name", "age"} and len(value["name"]) <= 12 and
              value["age"] in range(151), value)
    for thinking in (False, True):
        parsed = client.chat.completions.parse(model="tiny", messages=HELLO, temperature=0, max_tokens=600,
                                               response_format=Thing,
                                               extra_body={"chat_template_kwargs": {"thinking": thinking}})
        check("pydantic", isinstance(parsed.choices[0].message.parsed, Thing), parsed)
    for question in questions("json", 3):
        answer = client.chat.completions.create(model="tiny", messages=question["messages"], temperature=0,
                                                response_format={"type": "json_object"})
        check_equal("the model's own json", json.loads(answer.choices[0].message.content),
                    json.loads(question["answer"]))
    called = client.chat.completions.parse(model="tiny", messages=HELLO, temperature=0, max_tokens=600,
                                           tools=[openai.pydantic_function_tool(Thing)], tool_choice="required",
                                           parallel_tool_calls=False)
    check("pydantic tool", isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Thing), called)
    for extra, pattern in (({"regex": "(yes|no){3}"}, ("yes", "no")), ({"ebnf": 'root ::= "a" [bc]+ "d"'}, ("a",))):
        text = client.chat.completions.create(model="tiny", messages=HELLO, temperature=1, seed=1, max_tokens=64,
                                              extra_body=extra).choices[0].message.content
        check(f"{extra}", text.startswith(pattern), text)


def completions(client):
    prompt = "Once upon a time"
    answer = client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=16)
    check_equal("object", answer.object, "text_completion")
    text = answer.choices[0].text
    check_equal("tokens", answer.usage.completion_tokens, 16)
    chunks = list(client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=16, stream=True,
                                            stream_options={"include_usage": True}))
    check_equal("streamed", "".join(choice.text for chunk in chunks for choice in chunk.choices), text)
    check_equal("usage", chunks[-1].usage.completion_tokens, 16)
    check_equal("echo", client.completions.create(model="tiny", prompt=prompt, temperature=0, max_tokens=16,
                                                  echo=True).choices[0].text, prompt + text)
    batch = client.completions.create(model="tiny", prompt=[prompt, "Two plus two", prompt], temperature=0,
                                      max_tokens=16, n=2)
    check_equal("batch times n", [choice.index for choice in batch.choices], list(range(6)))
    check_equal("greedy choices are one", [batch.choices[i].text for i in (0, 1, 4, 5)], [text] * 4)
    ids = client.post("/tokenize", body={"model": "tiny", "prompt": prompt}, cast_to=object)["tokens"]
    by_ids = client.completions.create(model="tiny", prompt=ids, temperature=0, max_tokens=16)
    check_equal("token ids", (by_ids.choices[0].text, by_ids.usage.prompt_tokens), (text, len(ids)))
    scored = client.completions.create(model="tiny", prompt=ids, temperature=0, max_tokens=2, logprobs=3, echo=True)
    shown = scored.choices[0].logprobs
    check_equal("one row per token", len(shown.token_logprobs), len(ids) + 2)
    check("first unknown", shown.token_logprobs[0] is None and all(value <= 0 for value in shown.token_logprobs[1:]),
          shown)
    check_equal("offsets", shown.text_offset[0], 0)
    check("tokens are the text", "".join(shown.tokens).endswith(scored.choices[0].text[len(prompt):]), shown)
    check("three each", all(len(top) == 3 for top in shown.top_logprobs[1:]), shown.top_logprobs)


def bad_requests(client):
    def chat(**more):
        return lambda: client.chat.completions.create(**{"model": "tiny", "messages": HELLO, "max_tokens": 4, **more})

    for field, call in (("temperature", chat(temperature=-1)), ("top_p", chat(top_p=2)), ("n", chat(n=0)),
                        ("messages", chat(messages=[])), ("max_tokens", chat(max_tokens=-3)),
                        ("top_logprobs", chat(logprobs=True, top_logprobs=100)),
                        ("presence_penalty", chat(presence_penalty=9)),
                        ("tool_choice", chat(tools=TOOLS, tool_choice={"type": "function",
                                                                       "function": {"name": "nobody"}})),
                        ("messages", chat(messages=[{"role": "wizard", "content": "x"}]))):
        error = raises(field, openai.BadRequestError, call)
        if error is not None:
            check(f"{field} is named", (error.param or "").startswith(field) and field in error.message and
                  error.type == "invalid_request_error" and error.status_code == 400, (error.param, error.body))
    error = raises("schema", openai.BadRequestError, chat(response_format={"type": "json_schema", "json_schema": {
        "name": "x", "schema": {"type": "object", "not": {"type": "string"}}}}))
    check("the keyword is named", error is not None and '"not"' in error.message, error)
    error = raises("too long", openai.BadRequestError, chat(messages=[{"role": "user", "content": "word " * 9000}]))
    check("context length", error is not None and "4096" in error.message, error)
    raises("no such path", openai.NotFoundError, lambda: client.post("/nothing", body={}, cast_to=object))
    once = client.with_options(max_retries=0)
    error = raises("embeddings", openai.InternalServerError, lambda: once.embeddings.create(model="tiny", input="x"))
    check("text generation only", error is not None and error.status_code == 501 and "text" in error.message, error)
    check("still serving", chat()().choices[0].message.content is not None)


def cancels(client, server):
    """Closing a stream ends its request: soon afterwards nothing runs, long before its tokens would have been
    generated."""
    stream = client.chat.completions.create(model="tiny", messages=STORY, max_tokens=3000, stream=True,
                                            extra_body={"ignore_eos": True})
    for _, chunk in zip(range(3), stream):
        check("it streams", chunk.choices, chunk)
    stream.close()
    check("nothing runs", wait_until(lambda: server.load()["num_reqs"] == 0), server.load())
    check_equal("no page is held", server.request("POST", "/flush_cache")[0], 200)


async def many_at_once(server):
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        async def whole(question):
            answer = await client.chat.completions.create(model="tiny", messages=question["messages"], temperature=0)
            return answer.choices[0].message.content

        async def streamed(question):
            text = ""
            async for chunk in await client.chat.completions.create(model="tiny", messages=question["messages"],
                                                                    temperature=0, stream=True):
                text += chunk.choices[0].delta.content or ""
            return text

        asked = questions("copy", 12)
        wanted = [question["answer"] for question in asked]
        check_equal("together", await asyncio.gather(*map(whole, asked)), wanted)
        check_equal("streams together", await asyncio.gather(*map(streamed, asked)), wanted)
        task = asyncio.create_task(client.chat.completions.create(
            model="tiny", messages=STORY, max_tokens=3000, extra_body={"ignore_eos": True}))
        while server.load()["num_reqs"] == 0:  # until the request runs
            await asyncio.sleep(0.02)
        task.cancel()
        cancelled = await asyncio.gather(task, return_exceptions=True)
        check("cancelled", isinstance(cancelled[0], asyncio.CancelledError), cancelled)


def asynchronous(server):
    asyncio.run(many_at_once(server))
    check("nothing runs", wait_until(lambda: server.load()["num_reqs"] == 0), server.load())


def full_queue():
    """A full queue answers 503 with Retry-After, which the package obeys: with retries every request is
    answered."""
    with Server("--served-model-name", "tiny", "--max-running-requests", 1, "--max-queued-requests", 1) as server:
        def ask(retries):
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=retries)
            try:
                return client.chat.completions.create(model="tiny", messages=STORY, max_tokens=60,
                                                      extra_body={"ignore_eos": True}).usage.completion_tokens
            except openai.InternalServerError as error:
                check("the queue is named", error.status_code == 503 and "queue" in error.message and
                      int(error.response.headers["retry-after"]) > 0, (error.status_code, error.message))
                return None

        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(ask, [0] * 8))
            check("some are refused, some answered", {60, None} == set(answers), answers)
            check_equal("with retries all are answered", list(threads.map(ask, [20] * 8)), [60] * 8)
        check_equal("exit code", server.stop(), 0)


def readme_program(server):
    """The README's program runs unchanged except for the port, and prints an answer."""
    programs = [program for program in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
                if "openai" in program]
    check("the README shows the package", programs)
    for program in programs:
        done = subprocess.run([sys.executable, "-c", program.replace(":30000/", f":{server.port}/")], timeout=120,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        check("it prints an answer", done.returncode == 0 and len(done.stdout) > 20, (done.stdout, done.stderr))


def keys():
    with Server("--api-key", "secret", "--served-model-name", "tiny") as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        wrong = openai.OpenAI(base_url=url, api_key="other", max_retries=0)
        error = raises("a wrong key", openai.AuthenticationError, lambda: wrong.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=2))
        check("says so", error is not None and error.status_code == 401 and "key" in error.message.lower(), error)
        raises("models too", openai.AuthenticationError, wrong.models.list)
        right = openai.OpenAI(base_url=url, api_key="secret", max_retries=0)
        check("the right key", right.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2).choices)


def main():
    with Server("--served-model-name", "tiny") as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0)
        for claim in (lists_models, chats, thinks, streams, streams_with_helper, several_choices, stops, logprobs,
                      sampling, calls_when_told, calls_by_itself, structured, completions, bad_requests):
            run(claim, client)
        run(cancels, client, server)
        run(asynchronous, server)
        run(readme_program, server)
        check_equal("exit code", server.stop(), 0)
    run(full_queue)
    run(keys)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
