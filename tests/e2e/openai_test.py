#!/usr/bin/env python3
"""Tests OpenAI's endpoints of `hadal serve` over real sockets with the bundled model: chat, completions, reasoning,
structured output, tool choice, log-probabilities, many streams at once and clients that go away."""
import json
import re
import socket
import sys
import threading
import time

from counting import check, finish
from serving import Server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 24}
THINK = {"chat_template_kwargs": {"thinking": True}}
SCHEMA = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}, "sure": {"type": "boolean"}},
          "required": ["answer", "sure"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "description": "adds", "parameters": {
    "type": "object", "properties": {"unit": {"enum": ["c", "f"]}}, "required": ["unit"],
    "additionalProperties": False}}} for name in ("get_weather", "get_time")]


def join(events):
    """Joins the chunks of one choice."""
    out = {"content": "", "reasoning_content": "", "tool_calls": [], "logprobs": [], "finish_reason": None}
    for event in events:
        if event == "[DONE]" or not event["choices"]:
            continue
        choice = event["choices"][0]
        delta = choice["delta"]
        out["content"] += delta.get("content") or ""
        out["reasoning_content"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or []:
            if "id" in call:
                out["tool_calls"].append(call["function"])
            else:
                out["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        out["logprobs"] += (choice["logprobs"] or {}).get("content", [])
        out["finish_reason"] = choice["finish_reason"] or out["finish_reason"]
    return out


def whole(server, body):
    status, answer = server.post(CHAT, body)
    check("status", status == 200, answer)
    choice = answer["choices"][0]
    message = choice["message"]
    return {"content": message["content"] or "", "reasoning_content": message["reasoning_content"] or "",
            "tool_calls": [call["function"] for call in message["tool_calls"] or []],
            "logprobs": (choice["logprobs"] or {}).get("content", []), "finish_reason": choice["finish_reason"]}


def streams_say_the_same(server):
    for more in ({}, THINK, {"logprobs": True, "top_logprobs": 3}, {"stop": ["e"]}, {"max_tokens": 1},
                 {**THINK, "separate_reasoning": False}, {**THINK, "stream_reasoning": False}):
        body = {**HELLO, **more}
        events = list(server.events(CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}}))
        check("ends", events[-1] == "[DONE]" and events[-2]["choices"] == [], events[-2:])
        check("role first", events[0]["choices"][0]["delta"]["role"] == "assistant", events[0])
        once = whole(server, body)
        check(f"stream = whole {more}", join(events) == once, (join(events), once))
        if body.get("logprobs"):
            check("logprobs", all(len(entry["top_logprobs"]) == 3 for entry in once["logprobs"]), once)
    thought = whole(server, {**HELLO, **THINK, "max_tokens": 200})
    check("thinks", thought["reasoning_content"] and thought["finish_reason"] == "stop", thought)


def structured_output(server):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
    for i in range(6):
        body = {**HELLO, "temperature": 1.5, "seed": i, "max_tokens": 400, "response_format": form}
        if i == 4:
            body["response_format"] = {"type": "json_object", "schema": SCHEMA}
        if i % 2:
            body.update(THINK)
        answer = whole(server, body)
        if i % 2 and answer["finish_reason"] == "length":
            continue  # the answer ended inside reasoning
        check("ends", answer["finish_reason"] == "stop", answer)
        value = json.loads(answer["content"])
        check("schema", set(value) == {"answer", "sure"} and value["answer"] in ("yes", "no"), value)
        check("reasoning before", bool(answer["reasoning_content"]) == bool(i % 2), answer)
    answer = whole(server, {**HELLO, "regex": "[ab]{3}-[0-9]{2}", "temperature": 1.2})
    check("regex", re.fullmatch("[ab]{3}-[0-9]{2}", answer["content"]), answer)
    status, error = server.post(CHAT, {**HELLO, "response_format": {"type": "json_schema", "json_schema": {
        "name": "a", "schema": {"type": "object", "not": {}}}}})
    check("keyword named", status == 400 and '"not"' in error["error"]["message"], error)


def forced_tools(server):
    for choice, names in (("required", {"get_weather", "get_time"}),
                          ({"type": "function", "function": {"name": "get_time"}}, {"get_time"})):
        for thinking in (False, True):
            body = {**HELLO, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False,
                    "max_tokens": 500, "temperature": 1, "seed": 4, **(THINK if thinking else {})}
            answer = whole(server, body)
            check("same stream", join(server.events(CHAT, {**body, "stream": True}))["tool_calls"]
                  == answer["tool_calls"])
            if thinking and answer["finish_reason"] == "length":
                continue
            check("forced call", len(answer["tool_calls"]) == 1 and answer["tool_calls"][0]["name"] in names
                  and json.loads(answer["tool_calls"][0]["arguments"])["unit"] in ("c", "f"), answer)
            check("reason", answer["finish_reason"] == "tool_calls", answer)


def strict_tools(server):
    """A model that begins a call by itself (because of a bias on the marker) has to end it as a strict function
    requires."""
    marker = server.request("POST", "/tokenize", {"prompt": "<｜tool▁calls▁begin｜>", "add_special_tokens": False})[2]
    body = {**HELLO, "logit_bias": {str(json.loads(marker)["tokens"][0]): 100}, "max_tokens": 500, "temperature": 1}
    tools = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    answer = whole(server, {**body, "tools": tools, "parallel_tool_calls": False})
    check("the call of a strict function fits", len(answer["tool_calls"]) == 1 and answer["finish_reason"] == "tool_calls"
          and json.loads(answer["tool_calls"][0]["arguments"])["unit"] in ("c", "f"), answer)
    check("other functions are not held to it", whole(server, {**body, "tools": TOOLS})["tool_calls"] == [])
    tools[1]["function"]["parameters"] = {"type": "object", "not": {}}
    status, error = server.post(CHAT, {**HELLO, "tools": tools})
    check("a schema that cannot be enforced is named", status == 400
          and "tools[1].function.parameters" in error["error"]["message"], error)


def dsml_tools(server):
    """Forces calls in V3.2's notation, and sends one back with its result."""
    info = json.loads(server.request("GET", "/server_info")[2])
    check("parser", info["tool_call_parser"] == "deepseekv32", info["tool_call_parser"])
    forced_tools(server)
    call = {"id": "c", "type": "function", "function": {"name": "get_time", "arguments": '{"unit": "c"}'}}
    talk = [{"role": "developer", "content": "What time is it?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    answer = whole(server, {**HELLO, "messages": [*talk, {"role": "tool", "tool_call_id": "c", "content": "noon"}]})
    check("a result is accepted", answer["finish_reason"] in ("stop", "length"), answer)
    status, error = server.post(CHAT, {**HELLO, "messages": [{"role": "tool", "tool_call_id": "c", "content": "noon"}]})
    check("message named", status == 400 and "messages[0].role" in error["error"]["message"], error)


def loglikelihood(server):
    """Scores a continuation of known tokens, like lm-eval's local-completions."""
    ids = server.post("/v1/tokenize", {"prompt": "Once upon a time, there was"})[1]["tokens"]
    status, answer = server.post(COMPLETIONS, {"model": "x", "prompt": [ids, ids[:3]], "temperature": 0,
                                               "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True})
    check("scored", status == 200 and [c["index"] for c in answer["choices"]] == [0, 1], answer)
    logprobs = answer["choices"][0]["logprobs"]
    check("lengths", len(logprobs["token_logprobs"]) == len(ids) + 1 == len(logprobs["top_logprobs"]), logprobs)
    check("first is null", logprobs["token_logprobs"][0] is None and logprobs["token_logprobs"][1] < 0, logprobs)
    greedy = [value == max(top.values())
              for value, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:])]
    check("greedy is seen", any(greedy) and greedy[-1], logprobs)
    native = server.post("/generate", {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0,
                                       "sampling_params": {"max_new_tokens": 1, "temperature": 0}})[1]
    same = [entry[0] for entry in native["meta_info"]["input_token_logprobs"]]
    close = all(a == b or abs(a - b) < 1e-4 for a, b in zip(same[1:], logprobs["token_logprobs"][1:]))
    check("as /generate says", close, (same, logprobs["token_logprobs"]))


def many_streams(server):
    """One answer alone and 48 at once have the same text."""
    prompts = [f"Count from {i} to {i + 5}." for i in range(48)]
    body = [{"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 24}
            for prompt in prompts]
    alone = [whole(server, one) for one in body[:6]]
    answers = [None] * len(body)

    def ask(i):
        answers[i] = join(server.events(CHAT, {**body[i], "stream": True}))
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(body))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("all answered", all(answers), answers)
    check("as alone", answers[:6] == alone, (answers[:6], alone))


def clients_that_leave(server):
    body = json.dumps({**HELLO, "max_tokens": 3000, "ignore_eos": True, "stream": True, "n": 2}).encode()
    for wait in (0, 1):
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                       % (len(body), body))
        if wait:
            client.recv(100)
        client.close()
    deadline = time.monotonic() + 60
    while server.load()["num_reqs"] > 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    check("aborted", server.load()["num_reqs"] == 0, server.load())
    client = threading.Thread(target=lambda: server.post(CHAT, {**HELLO, "max_tokens": 3000, "ignore_eos": True,
                                                                "rid": "to-abort"}))
    client.start()
    while server.load()["num_reqs"] == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    server.post("/abort_request", {"rid": "to-abort"})
    client.join(60)
    check("abort answers", not client.is_alive())


def errors(server):
    for path, body, param in ((CHAT, {}, "messages"), (COMPLETIONS, {}, "prompt"),
                              (CHAT, {**HELLO, "temperature": -1}, "temperature"),
                              (CHAT, {**HELLO, "max_tokens": 10 ** 6}, "max_tokens"),
                              (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix")):
        status, error = server.post(path, body)
        check(f"400 {param}", status == 400 and error["error"]["param"] == param
              and error["error"]["type"] == "invalid_request_error", error)
    status, _, answer = server.request("POST", CHAT, b'{"messages": [')
    check("broken json", status == 400 and "error" in json.loads(answer), answer)
    status, _, answer = server.request("GET", CHAT)
    check("405", status == 405 and "error" in json.loads(answer), answer)


def main():
    with Server("--max-total-tokens", 32768, "--served-model-name", "tiny", "--enable-cache-report") as server:
        models = json.loads(server.request("GET", "/v1/models")[2])
        check("models", models["data"][0]["id"] == "tiny", models)
        for part in (streams_say_the_same, structured_output, forced_tools, strict_tools, loglikelihood, many_streams,
                     clients_that_leave, errors):
            part(server)
        check("ended well", server.stop() == 0)
    with Server("--chat-template", "v3.2", "--tool-call-parser", "deepseekv32") as server:
        dsml_tools(server)
        check("ended well", server.stop() == 0)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
