"""Lists hostile cases of what bodies consist of: large texts, JSON, numbers, Unicode, special tokens and paths that do not
exist."""
import json

from case import MIB, chat, generate, post, rows

OK = frozenset({200})
BAD = frozenset({400})
TOO_LARGE = frozenset({400, 413})


def text(content, **more):
    """Returns the steps of a generation from a text, which is raw JSON bytes."""
    return post("/generate", b'{"text":"' + content + b'","sampling_params":{"max_new_tokens":1}}', **more)


LARGE = rows("large_texts", [
    ("one word of 4 MiB", text(b"a" * (4 * MIB)), {"clients": 2}),
    ("4 MiB of spaces", text(b" " * (4 * MIB)), {"clients": 2}),
    ("4 MiB of line breaks", text(b"\\n" * (2 * MIB)), {"clients": 2}),
    ("4 MiB of Chinese", text("中文字符".encode() * (MIB // 3)), {"clients": 2}),
    ("4 MiB of digits", text(b"1234567890" * (4 * MIB // 10)), {"clients": 2}),
    ("4 MiB of punctuation", text(b"!?.,;:" * (4 * MIB // 6)), {"clients": 2}),
    ("4 MiB of combining marks", text("e\u0301\u0302".encode() * (4 * MIB // 5)), {"clients": 2}),
    ("4 MiB of emoji", text("👩‍👩‍👧".encode() * (4 * MIB // 18)), {"clients": 2}),
    ("letters and spaces by turns", text(b"a " * (2 * MIB)), {"clients": 2}),
    ("random-looking letters", text(bytes(97 + (i * i * 7 + i // 13) % 26 for i in range(MIB)) * 4), {"clients": 2}),
    ("60 MiB in one word", text(b"a" * (60 * MIB)), {"clients": 1, "seconds": 2.0}),
    ("60 MiB of words", text(b"word " * (12 * MIB)), {"clients": 1, "seconds": 2.0}),
    ("16 clients with 4 MiB", text(b"some words " * (4 * MIB // 11)), {"clients": 16, "seconds": 1.0}),
    ("64 clients with 256 KiB", text(b"some words " * (MIB // 44)), {"clients": 64, "seconds": 1.0}),
    ("a body over 64 MiB", post("/generate", b'{"text":"' + b"a" * (65 * MIB) + b'"}'),
     {"statuses": TOO_LARGE, "clients": 1}),
    ("escapes", text(b"\\u0061" * (4 * MIB // 6)), {"clients": 2}),
    ("a chat message of 4 MiB", chat("word " * (4 * MIB // 5)), {"clients": 2}),
    ("1000 parts of content", chat([{"role": "user", "content": [{"type": "text", "text": "a" * 4000}] * 1000}]), {"clients": 2}),
    ("2 million token ids", post("/generate", b'{"input_ids":[' + b"7," * (2 * MIB) + b"7]}"), {"clients": 2, "memory_ratio": 24}),
], answer_ratio=0.1)


def field(raw, **more):
    return post("/generate", b'{"text":"a","x":' + raw + b"}", **more)


def members(count):
    """Returns an object with so many members."""
    return b"{" + b",".join(b'"%d":1' % i for i in range(count)) + b"}"


JSON = rows("json", [
    ("100,000 lists deep", field(b"[" * 100_000), {"statuses": BAD}),
    ("16 MiB of open lists", post("/generate", b"[" * (16 * MIB)), {"statuses": BAD}),
    ("objects deep", field(b'{"a":' * 100_000), {"statuses": BAD}),
    ("99 levels", field(b"[" * 98 + b"]" * 98)),
    ("a key of 4 MiB", post("/generate", b'{"' + b"k" * (4 * MIB) + b'":1,"text":"a"}'), {"clients": 2}),
    ("300,000 keys", post("/generate", b"{" + b",".join(b'"k%d":1' % i for i in range(300_000)) + b',"text":"a"}'),
     {"statuses": BAD, "clients": 2}),
    ("one key 300,000 times", post("/generate", b"{" + b'"text":"a",' * 300_000 + b'"text":"a"}'),
     {"statuses": BAD, "clients": 2}),
    ("keys of equal hash length", post("/generate", b"{" + b",".join(b'"%06d":1' % i for i in range(200_000)) + b',"text":"a"}'),
     {"statuses": BAD, "clients": 2}),
    # Keys that collide would make the parser's time grow with the square of the members.
    ("1,000,000 members", field(members(1_000_000)), {"statuses": BAD, "clients": 2}),
    ("300 objects of 4,000 members", field(b"[" + b",".join([members(4000)] * 300) + b"]"), {"statuses": BAD, "clients": 2}),
    ("15 objects of 4,096 members", field(b"[" + b",".join([members(4096)] * 15) + b"]"),
     {"statuses": OK, "clients": 2, "memory_ratio": 24}),
    ("4 MiB of small lists", field(b"[" + b"[]," * (4 * MIB // 3) + b"[]]"), {"clients": 2, "memory_ratio": 32}),
    ("4 MiB of zeros", field(b"[" + b"0," * (2 * MIB) + b"0]"), {"clients": 2, "memory_ratio": 32}),
    ("4 MiB of empty objects", field(b"[" + b"{}," * (4 * MIB // 3) + b"{}]"), {"clients": 2, "memory_ratio": 32}),
    ("48 MiB of zeros", field(b"[" + b"0," * (24 * MIB) + b"0]"), {"clients": 2, "memory_ratio": 32, "seconds": 2.0}),
    ("an unfinished string", post("/generate", b'{"text":"' + b"a" * MIB), {"statuses": BAD}),
    ("white space alone", post("/generate", b" " * (4 * MIB)), {"statuses": BAD, "clients": 2}),
    ("after the object", post("/generate", b'{"text":"a"}' + b" " * MIB + b"x"), {"statuses": BAD}),
    ("an empty body", post("/generate", b""), {"statuses": BAD, "clients": 32}),
    ("NUL bytes", post("/generate", b"\0" * MIB), {"statuses": BAD}),
    ("a schema as text of 4 MiB", generate(json_schema="[" * (4 * MIB)), {"statuses": BAD, "clients": 2}),
], answer_ratio=0.1)


def parameter(name, raw):
    return post("/generate", b'{"text":"a","sampling_params":{"max_new_tokens":1,"' + name + b'":' + raw + b"}}")


NUMBERS = rows("numbers", [
    ("NaN", parameter(b"temperature", b"NaN"), {"statuses": BAD}),
    ("infinity", parameter(b"temperature", b"Infinity"), {"statuses": BAD}),
    ("1e999", parameter(b"temperature", b"1e999"), {"statuses": BAD}),
    ("-1e999", parameter(b"top_p", b"-1e999"), {"statuses": BAD}),
    ("1e-999", parameter(b"top_p", b"1e-999"), {"statuses": BAD}),
    ("2^63", parameter(b"max_new_tokens", b"9223372036854775808"), {"statuses": BAD}),
    ("-2^63", parameter(b"max_new_tokens", b"-9223372036854775808"), {"statuses": BAD}),
    ("2^64", parameter(b"n", b"18446744073709551616"), {"statuses": BAD}),
    ("minus one", parameter(b"max_new_tokens", b"-1"), {"statuses": BAD}),
    ("half a token", parameter(b"max_new_tokens", b"0.5"), {"statuses": BAD}),
    ("2^40 tokens", parameter(b"max_new_tokens", b"1099511627776"), {"statuses": BAD}),
    ("zero top_k", parameter(b"top_k", b"0"), {"statuses": BAD}),
    ("a million digits", parameter(b"temperature", b"1" * 1_000_000), {"statuses": BAD}),
    ("a million digits after the point", parameter(b"temperature", b"0." + b"1" * 1_000_000)),
    ("an exponent of a million digits", parameter(b"temperature", b"1e" + b"9" * 1_000_000), {"statuses": BAD}),
    ("a negative token id", post("/generate", {"input_ids": [-1]}), {"statuses": BAD}),
    ("a token id of 2^31", post("/generate", {"input_ids": [2**31]}), {"statuses": BAD}),
    ("a token id beyond the vocabulary", post("/detokenize", {"tokens": [10**9]}), {"statuses": BAD}),
    ("a seed of -2^63", chat(seed=-(2**63))),
    ("a negative seed", parameter(b"sampling_seed", b"-1"), {"statuses": BAD}),
    ("a bias of 1e30", generate(logit_bias={"1": 1e30}), {"statuses": BAD}),
    ("the smallest temperature", parameter(b"temperature", b"1e-45")),
    ("a timeout of text", parameter(b"max_new_tokens", b'"many"'), {"statuses": BAD}),
], clients=2, seconds=0.3, answer_ratio=0.1)

UNICODE = rows("unicode", [
    ("lone high surrogate", text(b"\\ud800")),
    ("lone low surrogate", text(b"\\udc00 \\udc00")),
    ("surrogates in the wrong order", text(b"\\udc00\\ud800")),
    ("overlong slash", text(b"\xc0\xaf"), {"statuses": BAD}),
    ("overlong NUL", text(b"\xe0\x80\x80"), {"statuses": BAD}),
    ("beyond U+10FFFF", text(b"\xf4\x90\x80\x80"), {"statuses": BAD}),
    ("a surrogate in UTF-8", text(b"\xed\xa0\x80"), {"statuses": BAD}),
    ("a cut character", text(b"\xe4\xb8"), {"statuses": BAD}),
    ("1 MiB of broken bytes", text(b"\xff" * MIB), {"statuses": BAD}),
    ("bidi controls", text("\u202e\u2066\u202a".encode() * 20)),
    ("zero-width joiners", text("\u200d\u200b\ufeff".encode() * 20)),
    ("an escaped NUL", text(b"\\u0000" * 100)),
    ("noncharacters", text("\ufffe\uffff".encode() * 20)),
    ("bidi controls in a request id", post("/generate", {"text": "a", "rid": "\u202e" * 50, "sampling_params": {"max_new_tokens": 1}})),
    ("line breaks in a request id", post("/generate", {"text": "a", "rid": "a\r\nSet-Cookie: x", "sampling_params": {"max_new_tokens": 1}})),
    ("line breaks in the model's name", chat(model="a\r\ndata: [DONE]\r\n\r\n" * 100)),
    ("a model's name of 1 MiB", chat(model="m" * MIB), {"clients": 2}),
    ("ranges of all characters under the flag i, in 64 prompts", post("/generate", {"text": ["a"] * 64, "sampling_params": [
        {"stop_regex": f"(?i)[\u0080-\U0010ffff][{chr(0x81 + i)}-\U0010ffff]", "max_new_tokens": 1} for i in range(64)]}),
     {"statuses": BAD, "clients": 16, "seconds": 1.0}),
    ("a range of all characters under the flag i", generate(stop_regex="(?i)[\u0080-\U0010ffff]#"),
     {"clients": 16, "seconds": 1.0}),
    ("ranges under the flag i in a key with escapes", post("/generate", b'{"text":"a","sampling_params":{"max_new_tokens":1,'
     b'"stop\\u005fregex":"(?i)[\\\\x80-\\\\x{10ffff}]#"}}'), {"clients": 16, "seconds": 1.0}),
    ("a broken stop string", post("/generate", b'{"text":"a","sampling_params":{"stop":"\xff"}}'), {"statuses": BAD}),
], clients=2, seconds=0.3)

SPECIAL = rows("special_tokens", [
    ("end of sentence in the text", text("<｜end▁of▁sentence｜>".encode() * 100)),
    ("begin of sentence 100 times", text("<｜begin▁of▁sentence｜>".encode() * 100)),
    ("beginnings of special tokens", text("<｜end▁of▁sen".encode() * 20_000), {"clients": 2}),
    ("half a marker 1 million times", text(b"<" * MIB), {"clients": 2}),
    ("roles in a message", chat("<｜User｜>a<｜Assistant｜>b" * 50)),
    ("think tags nested", chat("<think>" * 40 + "</think>" * 40)),
    ("roles in a message, as text", chat("<｜User｜>a<｜Assistant｜>b" * 50, content_special_tokens="text")),
    ("many messages, as text", chat([{"role": "user", "content": "<think>"}] * 30, content_special_tokens="text")),
    ("special tokens as stop strings", generate(stop=["<｜end▁of▁sentence｜>"] * 64)),
    ("every id as a stop token", generate(stop_token_ids=list(range(1024)))),
    ("too many stop tokens", generate(stop_token_ids=[1] * 1025), {"statuses": BAD}),
    ("special tokens in a grammar", generate(regex="<｜end▁of▁sentence｜>{1,100}")),
], clients=2, seconds=0.3)

BATCH_FILES = rows("batch_files", [
    ("upload of 16 MiB to /v1/files", post("/v1/files", b"x" * (16 * MIB))),
    ("a batch", post("/v1/batches", {"input_file_id": "file-1", "endpoint": "/v1/completions"})),
    ("path traversal", post("/v1/files/../../etc/passwd", b"")),
    ("encoded path traversal", post("/v1/files/%2e%2e%2f%2e%2e%2fetc%2fpasswd", b"")),
    ("16 MiB to no path", post("/nowhere", b"x" * (16 * MIB))),
    ("a profile outside its directory", post("/start_profile", {"output_dir": "../../../../tmp", "num_steps": 1}),
     {"statuses": BAD}),
], clients=2, statuses=frozenset({400, 404, 405}), memory_ratio=0.5, memory_bytes=24 * MIB)

def ollama(content="Once upon a time", path="/api/chat", options=None, **fields):
    """Returns the steps of a request in Ollama's dialect; lists are the messages of a chat."""
    what = {"prompt": content} if path == "/api/generate" else {
        "messages": content if isinstance(content, list) else [{"role": "user", "content": content}]}
    return post(path, {**what, "options": {"num_predict": 8, "temperature": 0, **(options or {})}, **fields})


NOT_TEXT = frozenset({501})

DIALECTS = rows("dialects", [
    ("Ollama: a stream", ollama(options={"num_predict": 200})),
    ("Ollama: 64 streams of 2000 tokens", ollama(options={"num_predict": 2000}),
     {"clients": 64, "seconds": 1.5, "answer_bytes": 1 << 20, "answers": False}),
    ("Ollama: a stop string of 4097 bytes", ollama(options={"stop": ["a" * 4097]}), {"statuses": BAD}),
    ("Ollama: 65 stop strings", ollama(options={"stop": ["a"] * 65}), {"statuses": BAD}),
    ("Ollama: a schema that refers to itself", ollama(format={"type": "object", "properties": {"a": {"$ref": "#"}}}),
     {"memory_bytes": 320 << 20}),
    ("Ollama: a deep schema", ollama(format=json.loads('{"items":' * 90 + "{}" + "}" * 90)), {"memory_bytes": 320 << 20}),
    ("Ollama: numbers as text", ollama(options={"temperature": "1e999", "num_predict": "many"}), {"statuses": BAD}),
    ("Ollama: 2^63 tokens", ollama(options={"num_predict": 2**63}), {"statuses": BAD}),
    ("Ollama: 10,000 messages", ollama([{"role": "user", "content": "a"}] * 10_000)),
    ("Ollama: 500 calls in the conversation", ollama([{"role": "user", "content": "a"}] + [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}] * 500)),
    ("Ollama: arguments 98 levels deep", ollama([{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": json.loads('{"a":' * 90 + "{}" + "}" * 90)}}]}])),
    ("Ollama: a raw prompt of 4 MiB", ollama("word " * (4 * MIB // 5), "/api/generate", raw=True), {"clients": 2}),
    ("Ollama: images", ollama([{"role": "user", "content": "a", "images": ["a" * MIB]}]), {"statuses": NOT_TEXT, "clients": 2}),
    ("Ollama: a model's name of 1 MiB", ollama(model="m" * MIB), {"statuses": BAD, "clients": 2}),
    ("Ollama: 64 clients without a prompt", ollama("", "/api/generate"), {"clients": 64}),
    ("Ollama: an upload of 16 MiB", post("/api/blobs/sha256:0", b"x" * (16 * MIB)), {"statuses": NOT_TEXT, "clients": 2}),
    ("tokens of 10,000 messages", post("/tokenize", {"messages": [{"role": "user", "content": "a"}] * 10_000}),
     {"answer_ratio": 8, "clients": 2}),
    ("tokens of a message of 4 MiB", post("/tokenize", {"messages": [{"role": "user", "content": "word " * (4 * MIB // 5)}]}),
     {"answer_ratio": 8, "clients": 2, "memory_ratio": 24}),
    ("4 MiB of beginnings of tags", post("/separate_reasoning", {"text": "<thin" * (4 * MIB // 5)}),
     {"clients": 2, "answer_ratio": 2}),
    ("4 MiB of beginnings of calls", post("/parse_function_call", {
        "text": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{" * (4 * MIB // 60), "tool_call_parser": "deepseekv31",
        "tools": [{"type": "function", "function": {"name": "f"}}]}), {"clients": 2, "answer_ratio": 2, "memory_ratio": 24}),
    ("a text of 1 MiB for a parser that does not exist", post("/separate_reasoning", {
        "text": "a" * MIB, "reasoning_parser": "x" * MIB}), {"statuses": BAD, "clients": 2}),
    ("16 MiB to be embedded", post("/v1/embeddings", b"x" * (16 * MIB)), {"statuses": NOT_TEXT, "clients": 2}),
    ("images in messages", chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a" * MIB}}]}]),
     {"statuses": NOT_TEXT, "clients": 2}),
])

CASES = DIALECTS + LARGE + JSON + NUMBERS + UNICODE + SPECIAL + BATCH_FILES
