"""Lists hostile cases of the dialects beside chat: what their bodies alone can ask for."""
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

CASES = MESSAGES
