"""Lists hostile cases of the dialects other than chat: requests that only their bodies can express."""
import json

from case import MIB, get, post, rows

BAD = frozenset({400})
NOT_FOUND = frozenset({404})
SIXTY_FOUR = {"clients": 64, "seconds": 1.5}
HI = [{"role": "user", "content": "Hi"}]


def messages(content=None, path="/v1/messages", **fields):
    """Returns the steps of a short message."""
    return post(path, {"messages": HI if content is None else content, "max_tokens": 8, **fields})


def user(*blocks):
    return [{"role": "user", "content": list(blocks)}]


def tool(name, **more):
    return {"name": name, "input_schema": {"type": "object", **more}}


MESSAGES = rows("messages", [
    ("64 clients", messages(), SIXTY_FOUR),
    ("64 clients, streams", messages(stream=True, max_tokens=200, ignore_eos=True), {**SIXTY_FOUR, "answers": False}),
    ("a text of 4 MiB", messages([{"role": "user", "content": "word " * (4 * MIB // 5)}]), {"clients": 2, "statuses": BAD}),
    ("100,000 blocks", messages(user(*[{"type": "text", "text": "a"}] * 100_000)), {"clients": 2, "memory_ratio": 24}),
    ("100,000 results", messages(user(*[{"type": "tool_result", "tool_use_id": "t", "content": "a"}] * 100_000)),
     {"clients": 2, "memory_ratio": 24}),
    ("10,000 calls in a turn", messages([{"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}] * 10_000}, *HI]), {"clients": 2, "memory_ratio": 24}),
    ("an input nested 90 deep", messages([{"role": "assistant", "content": [
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": json.loads("[" * 90 + "]" * 90)}}]}, *HI])),
    ("1024 tools", messages(tools=[tool(f"f{i}") for i in range(1024)]), {"clients": 2}),
    ("1025 tools", messages(tools=[tool(f"f{i}") for i in range(1025)]), {"statuses": BAD}),
    ("a forced call of a large schema", messages(tools=[tool("f", properties={
        f"p{i}": {"type": "string", "pattern": "(a|b){1,90}"} for i in range(200)})], tool_choice={"type": "any"}), {"clients": 2}),
    ("65 stop sequences", messages(stop_sequences=["a"] * 65), {"statuses": BAD}),
    ("64 long stop sequences", messages(stop_sequences=["a" * 4090 + str(i) for i in range(64)])),
    ("128 choices", messages(n=128), {"statuses": BAD}),
    ("a model name of 1 MB in a stream", messages(model="m" * MIB, stream=True), {"statuses": BAD}),
    ("count, 64 clients", messages(path="/v1/messages/count_tokens"), SIXTY_FOUR),
    ("count a text of 16 MiB", messages([{"role": "user", "content": "a" * (16 * MIB)}], path="/v1/messages/count_tokens"),
     {"clients": 2, "statuses": BAD}),
    ("batches", get("/v1/messages/batches"), {"statuses": NOT_FOUND}),
])



def responses(given="Hi", path="/v1/responses", **fields):
    """Returns the steps of a short response."""
    return post(path, {"input": given, "max_output_tokens": 8, **fields})


def item(text, role="user", kind="input_text"):
    return {"role": role, "content": [{"type": kind, "text": text}]}


# The fields that repeat the request are in three events of a stream.
ECHO = {"answer_ratio": 4.0}

RESPONSES = rows("responses", [
    ("64 clients", responses(), SIXTY_FOUR),
    ("64 clients, streams", responses(stream=True, max_output_tokens=200, ignore_eos=True), {**SIXTY_FOUR, "answers": False}),
    ("64 clients that store 100 KB each", responses(instructions="a " * 1000, tools=[
        {"type": "function", "name": "f", "x": "y" * 100_000}]), {**SIXTY_FOUR, **ECHO, "memory_bytes": 192 * MIB}),
    ("fields that are repeated, of 1 MB", responses(text={"format": {"type": "text"}, "x": "y" * 1_000_000}, stream=True),
     {"clients": 4, **ECHO, "memory_bytes": 192 * MIB}),
    ("fields that are repeated, of 8 MiB", responses(text={"format": {"type": "text"}, "x": "y" * (8 * MIB)}, stream=True),
     {"clients": 2, "statuses": BAD, "memory_bytes": 192 * MIB}),
    ("metadata of 1 MiB", responses(metadata={"a": "b" * MIB}), {"statuses": BAD}),
    ("17 metadata", responses(metadata={str(i): "b" for i in range(17)}), {"statuses": BAD}),
    ("a text of 4 MiB", responses("word " * (4 * MIB // 5)), {"clients": 2, "statuses": BAD}),
    ("100,000 items", responses([item("a")] * 100_000), {"clients": 2, "memory_ratio": 24}),
    ("100,000 items of reasoning", responses([{"type": "reasoning", "summary": []}] * 100_000), {"clients": 2, "memory_ratio": 24}),
    ("a conversation that nobody has", responses(previous_response_id="resp_" + "0" * 32), {**SIXTY_FOUR, "statuses": BAD}),
    ("1025 tools", responses(tools=[{"type": "function", "name": f"f{i}"} for i in range(1025)]), {"statuses": BAD}),
    ("a schema of 2 MiB", responses(text={"format": {"type": "json_schema", "name": "n", "schema": {
        "type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(60_000)}}}}), {"clients": 2, "statuses": BAD}),
    ("128 choices", responses(n=128), {"statuses": BAD}),
    ("count, 64 clients", responses(path="/v1/responses/input_tokens"), SIXTY_FOUR),
    ("ids that nobody has", get("/v1/responses/resp_" + "0" * 32), {**SIXTY_FOUR, "statuses": NOT_FOUND}),
    ("a long id", get("/v1/responses/" + "a" * 30_000), {"statuses": NOT_FOUND}),
    ("deleting what nobody has", get("/v1/responses/resp_" + "0" * 32, method="DELETE"), {"statuses": NOT_FOUND}),
])

CASES = MESSAGES + RESPONSES
