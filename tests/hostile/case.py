"""Defines one row of the table of hostile cases: what a client sends, and how much it may cost. The rows are in
cases_*.py."""
import dataclasses
import json

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    """`steps` is what one connection does, in order (attack.py carries the steps out):
        bytes                 sends them
        ("wait", seconds)     sends and reads nothing
        ("trickle", data, n, seconds)  sends the data in pieces of n bytes with a pause after each
        ("read",)             reads until the server closes the connection or the case ends
        ("sip", n, seconds)   reads n bytes at a time with a pause after each
        ("half-close",)       shuts the sending side
        ("reset",)            ends the connection by a reset
    The connection is closed at the end. `clients` connections do this at a time, again and again for `seconds`,
    or once each if `once`. Where no answer has come by then, the case waits GRACE_S (attack.py) longer for one."""
    klass: str
    name: str
    steps: tuple
    clients: int = 4
    seconds: float = 0.5
    once: bool = False
    group: str = "plain"  # the flags of the server, see GROUPS of hostile_test.py
    statuses: frozenset = frozenset({200, 400})  # 503 with a budget exhausted is allowed everywhere
    answers: bool = True  # at least one answer must arrive; False: the client does not wait for one
    # One connection's answer has at most answer_ratio · (bytes sent) + answer_bytes.
    answer_ratio: float = 2.0
    answer_bytes: int = 64 << 10
    # The server's memory grows by at most memory_ratio · (bytes of one round of all clients) + memory_bytes.
    memory_ratio: float = 8.0
    memory_bytes: int = 48 * MIB
    through_tls: bool = True  # False, in the group "tls": the bytes are sent without TLS
    neighbours: bool = True  # False: the neighbour's delays are not bounded (the case disturbs by design)

    @property
    def full_name(self):
        return f"{self.klass}/{self.name}"

    @property
    def sent_bytes(self):
        """Returns how many bytes one connection sends."""
        return sum(len(step) if isinstance(step, bytes) else len(step[1]) if step[0] == "trickle" else 0
                   for step in self.steps)


def head(method, path, length=None, headers=(), host="server"):
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    if length is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {length}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogatepass")


def post(path, body, headers=()):
    """Returns the steps of a POST: an object is sent as JSON, bytes as they are."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return (head("POST", path, len(body), headers) + body, ("read",))


def get(path, headers=(), method="GET"):
    return (head(method, path, headers=headers), ("read",))


def generate(text="Once upon a time", new=8, **sampling):
    """Returns the steps of a short generation, with further sampling parameters."""
    return post("/generate", {"text": text, "sampling_params": {
        "max_new_tokens": new, "temperature": 0, "ignore_eos": True, **sampling}})


def chat(content="Once upon a time", max_tokens=8, **fields):
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return post("/v1/chat/completions", {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **fields})


def rows(klass, table, **defaults):
    """Makes cases of a table of (name, steps) or (name, steps, fields)."""
    return [Case(klass, row[0], tuple(row[1]), **{**defaults, **(row[2] if len(row) > 2 else {})}) for row in table]
