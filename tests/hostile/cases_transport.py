"""Lists hostile cases of the layers below the request: connections, chunks, headers, origins, keys, probes,
aborts and TLS."""
import contextlib
import json
import ssl

from case import MIB, generate, get, head, post, rows

READ = ("read",)
REFUSED = frozenset({400, 401, 403, 404, 405})
SHORT = json.dumps({"text": "a", "sampling_params": {"max_new_tokens": 1}}).encode()
LONG = json.dumps({"text": "Once", "stream": True, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}).encode()
LONG_POST = head("POST", "/generate", len(LONG)) + LONG
SHORT_KEPT = head("POST", "/generate", len(SHORT)).replace(b"Connection: close\r\n", b"") + SHORT
HEALTH_KEPT = b"GET /health HTTP/1.1\r\nHost: server\r\n\r\n"
METRICS_KEPT = HEALTH_KEPT.replace(b"/health", b"/metrics")
TEXT = json.dumps({"prompt": "a " * 8000}).encode()
TEXT_KEPT = head("POST", "/tokenize", len(TEXT)).replace(b"Connection: close\r\n", b"") + TEXT
IDLE = {"answers": False, "once": True, "seconds": 1.0}


def held(data, wait=1.0):
    """Returns the steps that send the beginning of something and wait."""
    return (data, ("wait", wait))


CONNECTIONS = rows("connections", [
    ("2000 idle", held(b""), {**IDLE, "clients": 2000, "memory_bytes": 64 * MIB}),
    ("opened and closed", (b"",), {"answers": False, "clients": 64}),
    ("opened and reset", (b"", ("reset",)), {"answers": False, "clients": 64}),
    ("half a request line", held(b"GET /hea"), {**IDLE, "clients": 500}),
    ("slow headers", (("trickle", head("GET", "/health", headers=["X: " + "a" * 200]), 4, 0.02), READ), {**IDLE, "clients": 200}),
    ("headers without an end", (b"GET /health HTTP/1.1\r\nHost: a\r\n", ("trickle", b"X: y\r\n" * 100, 6, 0.01)), {**IDLE, "clients": 200}),
    ("48 KB of headers, then line by line", (b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 12_000, ("trickle", b"a:\r\n" * 500, 4, 0.001)),
     {**IDLE, "clients": 64, "memory_bytes": 64 * MIB}),
    ("slow body", (head("POST", "/generate", 4096), ("trickle", b"x" * 100, 1, 0.01)), {**IDLE, "clients": 200}),
    ("stalled bodies of 1 MiB", held(head("POST", "/generate", 2 * MIB) + b"x" * MIB),
     {**IDLE, "clients": 64, "memory_ratio": 2.5}),
    ("announced bodies of 60 MiB", held(head("POST", "/generate", 60 * MIB)), {**IDLE, "clients": 64, "memory_bytes": 96 * MIB}),
    ("slow reader of a stream", (LONG_POST, ("sip", 64, 0.05)), {"clients": 16, "seconds": 1.0, "answers": False}),
    ("no reader of a stream", (LONG_POST, ("wait", 1.0)), {**IDLE, "clients": 16}),
    ("no reader of a large answer", (head("POST", "/tokenize", 200_013) + b'{"prompt":"' + b"a " * 100_000 + b'"}', ("wait", 0.8)),
     {**IDLE, "clients": 16, "memory_ratio": 24}),
    ("half-closed after the request", (head("GET", "/health"), ("half-close",), READ), {"answers": False}),
    ("half-closed stream", (LONG_POST, ("half-close",), READ), {"answers": False, "clients": 16}),
    ("reset after the request", (LONG_POST, ("reset",)), {"answers": False, "clients": 32}),
    ("200 pipelined probes", (HEALTH_KEPT * 200 + head("GET", "/health"), READ), {"clients": 8, "answer_ratio": 10}),
    ("100 pipelined metrics, 64 clients", (METRICS_KEPT * 99 + head("GET", "/metrics"), READ),
     {"clients": 64, "answer_ratio": 1000, "seconds": 1.0}),
    ("60 pipelined texts of 16 kB, 64 clients", (TEXT_KEPT * 60 + head("GET", "/health"), READ),
     {"clients": 64, "answer_ratio": 10, "seconds": 1.0}),
    ("pipelined after a long request", (LONG_POST.replace(b"Connection: close\r\n", b""), HEALTH_KEPT * 4000, ("wait", 1.0)),
     {**IDLE, "clients": 16, "memory_ratio": 4}),
    ("pipelined and half-closed", (HEALTH_KEPT * 200, ("half-close",), READ), {"clients": 16, "answer_ratio": 10}),
    ("200 pipelined generations", (SHORT_KEPT * 200 + head("POST", "/generate", len(SHORT)) + SHORT, READ),
     {"clients": 4, "answer_ratio": 10, "seconds": 1.0}),
    ("files of the page without a reader, 500 clients", held(b"GET /page/lib/highlight.js HTTP/1.1\r\nHost: a\r\n\r\n" * 20),
     {**IDLE, "clients": 500, "memory_ratio": 0, "memory_bytes": 48 * MIB}),
    ("metrics without a reader, 500 clients", held(METRICS_KEPT * 100),
     {**IDLE, "clients": 500, "memory_ratio": 0, "memory_bytes": 64 * MIB}),
    ("pipelined without a reader", held(HEALTH_KEPT * 20_000), {**IDLE, "clients": 8}),
    ("64 clients with short requests", post("/generate", SHORT), {"clients": 64, "seconds": 1.0}),
    ("noise instead of HTTP", (bytes(range(256)) * 64, READ), {"clients": 8}),
    ("a TLS greeting on a plain port", (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500, READ), {"answers": False}),
    ("HTTP/2 preface", (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", READ)),
    ("empty lines", (b"\r\n" * MIB, READ), {"statuses": frozenset({431}), "clients": 8}),
    ("empty lines, slowly", (("trickle", b"\r\n" * 100, 2, 0.01),), {**IDLE, "clients": 200}),
    ("60 MiB after a refusal", (head("POST", "/nowhere", 60 * MIB) + b"x" * (60 * MIB), READ),
     {"statuses": frozenset({404}), "memory_ratio": 0.1, "memory_bytes": 24 * MIB}),
    ("60 MiB after a refusal, and no reader", (head("POST", "/nowhere", 60 * MIB) + b"x" * (60 * MIB), ("wait", 0.2)),
     {"answers": False, "memory_ratio": 0.1, "memory_bytes": 24 * MIB}),
    ("60 MiB after the last request", (head("GET", "/health") + b"x" * (60 * MIB), READ),
     {"statuses": frozenset({200}), "memory_ratio": 0.1, "memory_bytes": 24 * MIB}),
])


def chunked(*chunks, end=b"0\r\n\r\n"):
    return (head("POST", "/generate", headers=["Transfer-Encoding: chunked"]) + b"".join(chunks) + end, READ)


CHUNKS = rows("chunks", [
    ("chunks of one byte", chunked(*(b"1\r\n%c\r\n" % byte for byte in SHORT))),
    ("a million chunks of one byte", chunked(b"1\r\na\r\n" * 1_000_000), {"clients": 2}),
    ("a chunk of 2^60", chunked(b"1000000000000000\r\nabc", end=b""), {"statuses": frozenset({400, 413})}),
    ("a chunk of 2^64", chunked(b"10000000000000000\r\nabc", end=b"")),
    ("a size that ends in a bare line feed", chunked(b"5\nabcde", end=b""), {"statuses": frozenset({400}), "clients": 64}),
    ("a last chunk that ends in bare line feeds", chunked(b"1\r\na\r\n", end=b"0\n\n"), {"statuses": frozenset({400})}),
    ("a negative chunk", chunked(b"-5\r\nabcde\r\n")),
    ("a chunk size of 100,000 zeros", chunked(b"0" * 100_000 + b"5\r\nabcde\r\n"), {"statuses": frozenset({400, 431})}),
    ("an extension of 60 KiB", chunked(b"1;" + b"x" * 60_000 + b"\r\na\r\n")),
    ("extensions of 1 KiB on 2000 chunks", chunked((b"1;" + b"x" * 1000 + b"\r\na\r\n") * 2000)),
    ("zeros before the sizes of 200 chunks", chunked((b"0" * 1000 + b"1\r\na\r\n") * 200), {"statuses": frozenset({400})}),
    ("1000 trailers", chunked(b"1\r\na\r\n", end=b"0\r\n" + b"X: y\r\n" * 1000 + b"\r\n"), {"statuses": frozenset({400, 431})}),
    ("trailers without an end", chunked(b"1\r\na\r\n", end=b"0\r\n" + b"X: y\r\n" * 50_000),
     {"statuses": frozenset({400, 431}), "answers": False}),
    ("a trailer of 1 MiB", chunked(b"1\r\na\r\n", end=b"0\r\nX: " + b"y" * MIB + b"\r\n\r\n"), {"statuses": frozenset({400, 431})}),
    ("chunks and a length", (b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", READ)),
    ("two lengths", (b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", READ)),
    ("a length of 2^64", (b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n", READ),
     {"statuses": frozenset({400, 413})}),
    ("a negative length", (b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", READ)),
    ("gzip", (b"POST /generate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", READ),
     {"statuses": frozenset({400, 501})}),
    ("65 MiB in chunks", chunked((b"100000\r\n" + b"a" * MIB + b"\r\n") * 65), {"clients": 1, "statuses": frozenset({413})}),
], statuses=frozenset({200, 400}))

HEADER = rows("headers", [
    ("1001 fields", get("/health", [f"X{i}: y" for i in range(1001)]), {"statuses": frozenset({431})}),
    ("a field of 70 KiB", get("/health", ["X: " + "y" * 70_000]), {"statuses": frozenset({431})}),
    ("a field of 60 KiB, 32 clients", get("/health", ["X: " + "y" * 60_000]), {"clients": 32}),
    ("a path of 70 KiB", get("/" + "a" * 70_000), {"statuses": frozenset({431})}),
    ("a query of 60 KiB", get("/health?" + "a=b&" * 15_000)),
    ("folded fields", get("/health", ["X: a\r\n b\r\n c"]), {"statuses": frozenset({400})}),
    ("a Connection list of 30,000 entries, 32 clients", get("/health", ["Connection: " + "a," * 30_000]),
     {"statuses": frozenset({400}), "clients": 32}),
    ("a list of 60 entries on each of 400 lines", get("/health", ["Proxy-Connection: " + "a," * 60] * 400), {"statuses": frozenset({400})}),
    ("30,000 equal lengths", (b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"5," * 30_000 + b"5\r\n\r\nabcde", READ),
     {"statuses": frozenset({400})}),
    ("a field folded 30,000 times", get("/health", ["X: a" + "\r\n " * 30_000]), {"statuses": frozenset({400, 431})}),
    ("60 KiB of spaces around each of 50 values", get("/health", ["X:" + " " * 60_000 + "a"] * 50), {"statuses": frozenset({431})}),
    ("a field without a name", get("/health", [": y"])),
    ("a space before the colon", get("/health", ["X : y"])),
    ("NUL in a field", get("/health", ["X: a\0b"])),
    ("bare line feeds", (b"GET /health HTTP/1.1\nHost: a\n\n", READ)),
    ("no Host", (b"GET /health HTTP/1.1\r\n\r\n", READ)),
    ("a long unknown method", get("/health", method="A" * 60_000), {"statuses": frozenset({400, 405, 431})}),
    ("encoded line breaks in the path", get("/a%0d%0aX:%20y")),
    ("a request id of 60 KiB", get("/health", ["X-Request-Id: " + "a" * 60_000])),
    ("an Expect of 100 without a body", (head("POST", "/generate", 100, ["Expect: 100-continue"]), ("wait", 0.5)), {**IDLE, "clients": 64}),
    ("1000 cookies, 32 clients", get("/health", [f"Cookie: {'c' * 40}"] * 990), {"clients": 32}),
], statuses=frozenset({200, 400, 404}), answer_bytes=140 << 10)

FOREIGN = "Origin: http://evil.example"
ORIGINS = rows("origins", [
    ("GET flush_cache from a foreign page", get("/flush_cache", [FOREIGN]), {"statuses": frozenset({403, 405})}),
    ("GET flush_cache as an image", get("/flush_cache", ["Sec-Fetch-Site: cross-site"]), {"statuses": REFUSED}),
    ("GET start_profile as an image", get("/start_profile", ["Sec-Fetch-Site: cross-site"]), {"statuses": REFUSED}),
    ("GET stop_profile as an image", get("/stop_profile", ["Sec-Fetch-Site: cross-site"]), {"statuses": REFUSED}),
    ("GET flush_cache", get("/flush_cache"), {"statuses": frozenset({405})}),
    ("abort from a foreign page", post("/abort_request", {"abort_all": True}, [FOREIGN]), {"statuses": frozenset({403})}),
    ("abort by a form, cross-site", post("/abort_request", {"abort_all": True}, ["Sec-Fetch-Site: cross-site"]),
     {"statuses": frozenset({403})}),
    ("pause from an origin of null", post("/pause_generation", {}, ["Origin: null"]), {"statuses": frozenset({403})}),
    ("a Host that was rebound", (head("POST", "/abort_request", 18, ["Origin: http://evil.example:80"], host="evil.example:80") + b'{"abort_all":true}', READ),
     {"statuses": frozenset({403, 421})}),
    ("a generation from a foreign page", post("/generate", SHORT, [FOREIGN, "Sec-Fetch-Site: cross-site"]), {"statuses": frozenset({200, 403})}),
    ("two Hosts", (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", READ), {"statuses": frozenset({400})}),
    ("OPTIONS storm", get("/generate", [FOREIGN, "Access-Control-Request-Method: POST"], method="OPTIONS"),
     {"clients": 32, "statuses": frozenset({200, 204, 403})}),
    ("an endless HEAD", get("/server_info", method="HEAD"), {"clients": 16}),
    # With --allow-get-admin. Over plain HTTP a browser sends no Sec-Fetch-Site to another machine, so only its name tells an image on
    # a foreign page from an operator's curl.
    *((f"GET {name} as an image over plain HTTP", get(f"/{name}", ["User-Agent: Mozilla/5.0 (X11; Linux x86_64)", "Accept: image/*"]),
       {"statuses": frozenset({403}), "group": "limits"}) for name in ("flush_cache", "start_profile", "stop_profile")),
], clients=2, seconds=0.3)

PROBE = rows("health_generate", [
    ("loop of 64 clients", get("/health_generate"), {"clients": 64, "seconds": 1.0}),
    ("by POST with 1 MiB", post("/health_generate", b"x" * MIB), {"clients": 8, "memory_ratio": 3, "statuses": frozenset({200})}),
    ("by POST with 16 MiB", post("/health_generate", b"x" * (16 * MIB)), {"clients": 2, "statuses": frozenset({200}),
                                                                        "memory_ratio": 0.5}),
    ("health with 16 MiB", post("/health", b"x" * (16 * MIB)), {"clients": 2, "statuses": frozenset({200}),
                                                              "memory_ratio": 0.5}),
    ("stalled body", held(head("POST", "/health_generate", MIB) + b"x"), {**IDLE, "clients": 200}),
    ("clients that leave", (head("GET", "/health_generate"), ("reset",)), {"answers": False, "clients": 64}),
    ("metrics loop", get("/metrics"), {"clients": 32, "answer_bytes": 256 << 10}),
    ("server_info loop", get("/server_info"), {"clients": 32}),
    ("chat page loop", get("/"), {"clients": 32, "answer_bytes": 1 << 20}),
])

ABORTS = rows("aborts", [
    ("streams begun and left, 64 clients", (LONG_POST, ("wait", 0.02), ("reset",)), {"clients": 64, "answers": False, "seconds": 1.0}),
    ("whole answers left, 64 clients", (head("POST", "/generate", len(SHORT)) + SHORT, ("reset",)), {"clients": 64, "answers": False}),
    ("batches left", (*post("/generate", {"text": ["a"] * 256, "sampling_params": {"max_new_tokens": 500}})[:1], ("wait", 0.05), ("reset",)),
     {"clients": 8, "answers": False}),
    ("aborts of unknown ids", post("/abort_request", {"rid": "nobody"}), {"clients": 16}),
    ("an abort id of 1 MiB", post("/abort_request", {"rid": "x" * MIB}), {"statuses": frozenset({200, 400, 413})}),
    ("an empty abort id", post("/abort_request", {"rid": ""}), {"statuses": frozenset({400})}),
    ("abort_all without a key", post("/abort_request", {"abort_all": True}),
     {"group": "keys", "statuses": frozenset({401}), "clients": 16}),
    ("abort_all with the key of users", post("/abort_request", {"abort_all": True}, ["Authorization: Bearer the-key"]),
     {"group": "keys", "statuses": frozenset({401}), "clients": 16}),
    ("one request id for all", post("/generate", {"text": "a", "rid": "same", "sampling_params": {"max_new_tokens": 20}}), {"clients": 32}),
])

WRONG = ["Authorization: Bearer wrong"]
KEYS = rows("keys", [
    ("no key", post("/generate", SHORT)),
    ("a wrong key", post("/generate", SHORT, WRONG), {"clients": 32}),
    ("a Connection list of 30,000 entries and no key", get("/server_info", ["Connection: " + "a," * 30_000]),
     {"statuses": frozenset({400}), "clients": 32}),
    ("a key of 60 KiB", post("/generate", SHORT, ["Authorization: Bearer " + "k" * 60_000])),
    ("another scheme", post("/generate", SHORT, ["Authorization: Basic dGhlLWtleQ=="])),
    ("two keys", post("/generate", SHORT, [*WRONG, "Authorization: Bearer the-key"]), {"statuses": frozenset({400})}),
    ("two keys, the right one first", post("/generate", SHORT, ["Authorization: Bearer the-key", *WRONG]),
     {"statuses": frozenset({400}), "clients": 16}),
    ("empty lines without a key", (b"\r\n" * MIB, READ), {"statuses": frozenset({431})}),
    ("60 MiB without a key", post("/generate", b"x" * (60 * MIB)), {"clients": 2}),
    ("60 MiB with a wrong key", post("/v1/completions", b"x" * (60 * MIB), WRONG), {"clients": 2}),
    ("16 clients with 4 MiB and no key", post("/generate", b"x" * (4 * MIB)), {"clients": 16}),
    ("stalled upload without a key", (head("POST", "/generate", 60 * MIB) + b"x" * MIB, READ), {"clients": 64}),
    ("headers alone", (head("POST", "/generate", 60 * MIB), READ), {"clients": 64}),
    ("chunks without a key", (head("POST", "/generate", headers=["Transfer-Encoding: chunked"]) + b"100000\r\n" + b"a" * MIB, READ),
     {"clients": 32}),
    ("Expect without a key", (head("POST", "/generate", MIB, ["Expect: 100-continue"]), READ), {"clients": 32}),
    ("tokenize without a key", post("/tokenize", {"prompt": "a" * MIB})),
    ("a probe without a key", get("/health_generate"), {"statuses": frozenset({200, 401}), "clients": 32}),
    ("health with a body of 60 MiB and no key", post("/health", b"x" * (60 * MIB)), {"statuses": frozenset({200}), "clients": 4}),
    ("a probe with chunks without an end and no key", (head("POST", "/health_generate", headers=["Transfer-Encoding: chunked"])
                                                       + b"100000\r\n" + b"a" * MIB, READ),
     {"statuses": frozenset({200}), "clients": 32}),
    ("unknown path without a key", post("/nowhere", b"x" * MIB), {"statuses": frozenset({401, 404})}),
    ("server_info without a key", get("/server_info")),
], group="keys", statuses=frozenset({401}), memory_ratio=0.1, memory_bytes=24 * MIB)


def greeting():
    """Returns the first bytes of a handshake. The server's answer to them costs as much as its answer to an
    honest client."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
    return sent.read()


TLS = rows("tls", [
    ("connections without a greeting", held(b""), {**IDLE, "clients": 500}),
    ("half a greeting", held(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), {**IDLE, "clients": 200}),
    ("a greeting of noise", (b"\x16\x03\x01\x40\x00" + b"\xa5" * 16384, READ), {"answers": False, "clients": 16}),
    ("HTTP without TLS", get("/health"), {"answers": False}),
    ("handshakes", generate(new=1), {"through_tls": True, "clients": 8}),
    ("300 handshakes at once", (greeting(), ("wait", 0.3)), {"answers": False, "clients": 300}),
    ("4 MiB after a refusal", post("/nowhere", b"x" * (4 * MIB)),
     {"through_tls": True, "statuses": frozenset({404}), "memory_ratio": 2}),
    ("pipelined after a long request", (LONG_POST.replace(b"Connection: close\r\n", b""), HEALTH_KEPT * 4000),
     {**IDLE, "through_tls": True, "clients": 16, "memory_ratio": 4, "answer_bytes": 4 << 20}),
], group="tls", through_tls=False)

CASES = CONNECTIONS + CHUNKS + HEADER + ORIGINS + PROBE + ABORTS + KEYS + TLS
