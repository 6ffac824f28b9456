"""Lists hostile cases of what a well-formed request may demand: stop expressions, choices, probabilities, grammars
and tools."""
import json

from case import chat, generate, post, rows

OK = frozenset({200})
BAD = frozenset({400})
SIXTY_FOUR = {"clients": 64, "seconds": 1.5}
A_TO_A = "a" * 60  # enough for any backtracking; a longer prompt would cost its own steps


def stop(expression, text=A_TO_A, **more):
    return generate(text, new=more.pop("new", 32), stop_regex=expression, **more)


STOP_REGEX = rows("stop_regex", [
    ("nested quantifier", stop("(a+)+$")),
    ("nested star", stop("(a*)*b")),
    ("alternation of the same letter", stop("(a|a)*b")),
    ("overlapping alternation", stop("(a|aa|aaa)+$")),
    ("any text twice", stop("(.*)(.*)(.*)(.*)(.*)x")),
    ("optional letters", stop("a?" * 60 + "a" * 60)),
    ("classes that overlap", stop("([a-z]+[a-z0-9]*)+!")),
    ("lazy nested", stop("(.+?)+?Z")),
    ("back-reference", stop(r"(a*)\1b"), {"statuses": BAD}),
    ("back-reference by name", stop(r"(?<x>.+)\k<x>\k<x>b"), {"statuses": BAD}),
    ("relative back-reference", stop(r"(.+)\g{-1}b"), {"statuses": BAD}),
    ("recursion", stop(r"(\((?R)*\))+b"), {"statuses": BAD}),
    ("recursion into a group", stop(r"(a(?1)?b)+c"), {"statuses": BAD}),
    ("conditional", stop(r"(a)?(?(1)b|c)+d"), {"statuses": BAD}),
    ("verb skip", stop("a+(*SKIP)(*FAIL)|b"), {"statuses": BAD}),
    ("verb that raises the limit", stop("(*LIMIT_MATCH=4000000000)(a+)+$"), {"statuses": BAD}),
    ("verb without optimisation", stop("(*NO_START_OPT)(*NO_AUTO_POSSESS)(a+)+$"),
     {"statuses": BAD}),
    ("call-out", stop("a(?C1)b"), {"statuses": BAD}),
    ("lookbehind", stop("(?<=a{100})b")),
    ("nested lookahead", stop("(?=(?=(?=a+)+)+)+b")),
    ("large repeat", stop("a{65535}")),
    ("nested large repeats", stop("((a{1000}){1000}){1000}")),
    ("repeat of any letter", stop(".{0,4000}.{0,4000}b")),
    ("repeat of a group", stop("(ab?c?d?){1,500}z")),
    ("eight expressions", stop(["(a+)+$", "(a|a)*b", "(.*)*x", "(a?){50}y", ".*.*.*z", "(a*)*b", "([^b]+)+c", "(.+)+d"])),
    ("nine expressions", stop(["a"] * 9), {"statuses": BAD}),
    ("an expression of 4096 bytes", stop("(" + "a?" * 2040 + ")+b")),
    ("an expression of 1 MiB", stop("a" * (1 << 20)), {"statuses": BAD}),
    ("deep groups", stop("(" * 900 + "a" + ")" * 900)),
    ("unicode properties", stop(r"(\p{L}+\p{N}*)+\p{So}", text="é中" * 20)),
    ("the empty expression", stop("")),
    ("expressions for a batch of 300", post("/generate", {
        "text": ["a"] * 300, "sampling_params": [{"stop_regex": f"(a+)+{i}", "max_new_tokens": 2} for i in range(300)]}),
     {"statuses": BAD}),
    ("64 clients, nested quantifier", stop("(.+)+#"), SIXTY_FOUR),
    ("64 clients, eight expressions", stop(["(.*)*x", "(a|a)*b"] * 4), SIXTY_FOUR),
    ("expressions over a long answer", stop("(.*a){12}#", text="Once", new=1500), {"answers": False}),
    ("64 long stop strings", generate(A_TO_A, stop=["a" * 4090 + str(i) for i in range(64)], new=64)),
])

AMPLIFY = rows("amplification", [
    ("n of 128", generate(n=128, new=16), {"answer_bytes": 2 << 20}),
    ("n of 129", generate(n=129), {"statuses": BAD}),
    ("n of 128, 16 clients", generate(n=128, new=64), {"clients": 16, "seconds": 1.5, "answer_bytes": 2 << 20,
                                                      "answers": False}),
    ("a batch of 128 prompts", post("/generate", {"text": ["Once"] * 128, "sampling_params": {"max_new_tokens": 8}}),
     {"answer_bytes": 2 << 20}),
    # One client may have 7/8 of the 4,096 places of the queue.
    ("a batch of 3584 prompts", post("/generate", {"text": ["a"] * 3584, "sampling_params": {"max_new_tokens": 1}}),
     {"clients": 2, "answer_bytes": 16 << 20, "seconds": 1.5, "answers": False,
      "memory_bytes": 96 << 20}),
    ("a batch of 3585 prompts", post("/generate", {"text": ["a"] * 3585, "sampling_params": {"max_new_tokens": 1}}),
     {"statuses": BAD}),
    ("a salt for each of 100 prompts", post("/generate", {
        "text": ["Once"] * 100, "cache_salt": [f"salt {i}" for i in range(100)],
        "sampling_params": {"max_new_tokens": 0}}), {"clients": 2, "answer_bytes": 4 << 20, "answers": False}),
    ("a batch of 16385 prompts", post("/generate", {"text": ["a"] * 16385}), {"statuses": BAD}),
    ("28 prompts with n of 128", post("/generate", {
        "text": ["a " * 200] * 28, "sampling_params": {"max_new_tokens": 4, "n": 128}}),
     # The case is long enough for several first tokens of the neighbour, even on a busy machine.
     {"clients": 1, "answers": False, "answer_bytes": 16 << 20, "memory_bytes": 96 << 20, "seconds": 4}),
    # Only the first of these fits into the queue of 4,096 places.
    ("27 prompts with n of 128, 64 clients", post("/generate", {
        "text": ["a"] * 27, "sampling_params": {"max_new_tokens": 4, "n": 128}}),
     {**SIXTY_FOUR, "answers": False, "answer_bytes": 16 << 20, "memory_bytes": 96 << 20}),
    ("27 prompts with n of 128 and a grammar, 64 clients", post("/v1/completions", {
        "prompt": ["a"] * 27, "max_tokens": 4, "n": 128, "regex": "[a-z]{1,9}"}),
     {**SIXTY_FOUR, "answers": False, "answer_bytes": 16 << 20, "memory_bytes": 192 << 20}),
    ("56 choices with all their scores, 26 clients", post("/generate", {
        "text": "Once", "return_logprob": True, "top_logprobs_num": 128,
        "sampling_params": {"max_new_tokens": 60, "n": 56, "ignore_eos": True}}),
     {"clients": 26, "seconds": 3, "answers": False, "answer_bytes": 64 << 20, "memory_bytes": 1 << 30}),
    ("28 prompts with n of 128 and one id, 64 clients", post("/generate", {
        "text": ["a"] * 28, "rid": ["x"] * 28, "sampling_params": {"max_new_tokens": 4, "n": 128}}),
     {**SIXTY_FOUR, "statuses": BAD}),
    ("128 prompts with n of 128", post("/generate", {
        "text": ["a " * 200] * 128, "sampling_params": {"max_new_tokens": 4, "n": 128}}), {"statuses": BAD}),
    ("129 prompts with n of 128", post("/generate", {"text": ["a"] * 129, "sampling_params": {"n": 128}}), {"statuses": BAD}),
    ("128 top probabilities", post("/generate", {
        "text": "a b c d " * 100, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 128,
        "return_text_in_logprobs": True, "sampling_params": {"max_new_tokens": 16}}),
     {"answer_bytes": 8 << 20, "memory_bytes": 96 << 20}),
    ("prompt probabilities times n", post("/generate", {
        "text": "a b c d " * 300, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 128,
        "sampling_params": {"max_new_tokens": 1, "n": 64}}),
     {"clients": 2, "answers": False, "seconds": 1.5, "answer_bytes": 16 << 20, "memory_bytes": 128 << 20}),
    ("129 top probabilities", post("/generate", {"text": "a", "return_logprob": True, "top_logprobs_num": 129}),
     {"statuses": BAD}),
    ("chat with 20 alternatives", chat(logprobs=True, top_logprobs=20, max_tokens=64), {"answer_bytes": 1 << 20}),
    ("chat with 21 alternatives", chat(logprobs=True, top_logprobs=21), {"statuses": BAD}),
    ("best_of", post("/v1/completions", {"prompt": "a", "best_of": 128}), {"statuses": BAD}),
    ("model name of 1 MB in a stream", chat(model="m" * (1 << 20), stream=True, max_tokens=64), {"statuses": BAD}),
    ("echo", post("/v1/completions", {"prompt": "a b " * 900, "echo": True, "max_tokens": 1})),
    ("echo with n and probabilities", post("/v1/completions", {
        "prompt": "a b " * 400, "echo": True, "logprobs": 5, "max_tokens": 1, "n": 64}),
     {"clients": 2, "answers": False, "seconds": 1.5, "answer_bytes": 16 << 20, "memory_bytes": 128 << 20}),
    ("echo of special tokens", post("/v1/completions", {"prompt": list(range(2000)), "echo": True, "max_tokens": 1}),
     {"answer_bytes": 128 << 10}),
    ("cumulative stream", post("/generate", {"text": "Once", "stream": True, "sampling_params": {
        "max_new_tokens": 2000, "ignore_eos": True}}),
     {"clients": 8, "answer_bytes": 4 << 20, "seconds": 2.0}),
    ("cumulative stream of n choices", post("/generate", {"text": "Once", "stream": True, "sampling_params": {
        "max_new_tokens": 500, "ignore_eos": True, "n": 64}}),
     {"clients": 1, "answer_bytes": 16 << 20, "seconds": 2.0, "answers": False}),
    ("64 clients, prompts of 4000 tokens", post("/generate", {
        "input_ids": [(7 * i) % 4000 for i in range(4000)], "sampling_params": {"max_new_tokens": 1}}),
     SIXTY_FOUR),
    ("64 clients, 3000 tokens each", generate(new=3000), {**SIXTY_FOUR, "answers": False}),
    ("64 clients, streams of 3000 tokens", post("/generate", {"text": "Once", "stream": True, "sampling_params": {
        "max_new_tokens": 3000, "ignore_eos": True}}), {**SIXTY_FOUR, "answer_bytes": 4 << 20}),
    ("highest priority", post("/generate", {"text": "a", "priority": 10**9, "sampling_params": {
        "max_new_tokens": 1000, "ignore_eos": True}}), {"clients": 32, "answers": False, "seconds": 1.0}),
    ("1024 biases", generate(logit_bias={str(i): -100 for i in range(1024)}, new=64), {"clients": 16}),
    ("1025 biases", generate(logit_bias={str(i): 1 for i in range(1025)}), {"statuses": BAD}),
    ("all penalties", generate(frequency_penalty=2, presence_penalty=2, repetition_penalty=2, new=200), {"clients": 16}),
    ("tokenize 100,000 words", post("/tokenize", {"prompt": "word " * 100_000}), {"answer_ratio": 8, "clients": 2}),
    ("detokenize 500,000 ids", post("/detokenize", {"tokens": [4000] * 500_000}), {"answer_ratio": 8, "clients": 2}),
    ("tokenize 16 KiB, 64 clients", post("/tokenize", {"prompt": "word " * 3200}), {**SIXTY_FOUR, "answer_ratio": 8}),
    ("tokenize 4000 letters, 64 clients", post("/tokenize", b'{"prompt":[' + b'"a",' * 4000 + b'"a"]}'),
     {**SIXTY_FOUR, "answer_ratio": 8}),
    ("detokenize 8000 ids, 64 clients", post("/detokenize", b'{"tokens":[' + b"7," * 8000 + b"7]}"), SIXTY_FOUR),
    ("detokenize 2000 lists, 64 clients", post("/detokenize", b'{"tokens":[' + b"[7,7]," * 2000 + b"[7]]}"),
     {**SIXTY_FOUR, "answer_ratio": 8}),
    ("tokenize a list of 100,000", post("/tokenize", {"prompt": ["a"] * 100_000}), {"answer_ratio": 8, "clients": 2}),
], statuses=frozenset({200, 400}))

SCORED = {"return_logprob": True, "logprob_start_len": 0}

# A refused request costs only the reading of its body. The limits of the group "limits" are in GROUPS of hostile_test.py. The
# others are the defaults for the bundled model: 4,194,304 tokens and as many log-probabilities of prompts.
LIMITS = rows("limits", [
    ("16,384 generations of full context", post("/generate", {
        "text": ["a"] * 16384, "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}), {"statuses": BAD}),
    ("16,384 choices of full context", post("/v1/completions", {"prompt": ["a"] * 128, "n": 128, "max_tokens": 4000}),
     {"statuses": BAD}),
    ("batches of full context, 64 clients", post("/generate", {
        "input_ids": [[3]] * 1100, "sampling_params": {"max_new_tokens": 4000}}), {**SIXTY_FOUR, "statuses": BAD}),
    ("a batch one prompt above the limit", post("/generate", {
        "input_ids": [[3]] * 1025, "sampling_params": {"max_new_tokens": 4095}}), {"statuses": BAD}),
    ("16,384 choices of 300 tokens", post("/v1/completions", {"prompt": ["a"] * 128, "n": 128, "max_tokens": 300}),
     {"statuses": BAD}),
    ("scores of nine long prompts", post("/generate", {
        "input_ids": [[(7 * i) % 4000 for i in range(4000)]] * 9, "top_logprobs_num": 128, **SCORED}), {"statuses": BAD}),
    ("scores of a prompt times n", post("/generate", {
        "input_ids": [7] * 4000, "top_logprobs_num": 128, "sampling_params": {"max_new_tokens": 1, "n": 9}, **SCORED}),
     {"statuses": BAD}),
    ("echoed scores times n", post("/v1/completions", {
        "prompt": [7] * 4000, "echo": True, "logprobs": 128, "n": 9, "max_tokens": 1}), {"statuses": BAD}),
    ("the flag: tokens", post("/generate", {"text": ["a"] * 128, "sampling_params": {"max_new_tokens": 200}}),
     {"statuses": BAD, "group": "limits"}),
    ("the flag: the length that the server chooses", chat(n=128, max_tokens=None), {"statuses": BAD, "group": "limits"}),
    ("the flag: alternatives", post("/generate", {"text": "a", "top_logprobs_num": 6, **SCORED}),
     {"statuses": BAD, "group": "limits"}),
    ("the flag: scores, 64 clients", post("/generate", {"input_ids": [7] * 2000, "top_logprobs_num": 5, **SCORED}),
     {**SIXTY_FOUR, "statuses": BAD, "group": "limits"}),
    ("just below the flags", post("/generate", {
        "input_ids": [7] * 800, "top_logprobs_num": 5, "sampling_params": {"max_new_tokens": 8}, **SCORED}),
     {"clients": 1, "statuses": OK, "group": "limits", "answer_bytes": 1 << 20}),
])

DEEP = {"type": "string"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP, "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}
FANS = {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(30)}}
FANS["$defs"]["d30"] = {"type": "string"}
FANS["$ref"] = "#/$defs/d0"


def schema(value, **more):
    return generate(json_schema=json.dumps(value), **more)


def optional_rules(count):
    """Returns rules in each of which the next rule is optional, so that all of them may begin an answer at
    once."""
    return "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1}?" for i in range(count)) + f'\na{count} ::= "x"'


COMPILERS = {"memory_bytes": 256 << 20}  # what several compiles may hold at once, by docs/security.md
ADDED_TOKENS = ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜tool▁sep｜>", "<｜tool▁calls▁begin｜>"]
GRAMMARS = rows("grammars", [
    ("14,000 optional rules", generate(ebnf=optional_rules(14_000)), {"clients": 2, **COMPILERS}),
    ("64 clients, 1,200 optional rules", generate(ebnf=optional_rules(1_200)), {"clients": 64, **COMPILERS}),
    ("64 clients, rules that begin in many ways", generate(ebnf=optional_rules(50)), {"clients": 64, **COMPILERS}),
    ("8,000 rules that are the next one twice", generate(ebnf="root ::= r0\n" + "\n".join(
        f'r{i} ::= r{i + 1} r{i + 1} | ""' for i in range(8_000)) + '\nr8000 ::= "x"'), COMPILERS),
    ("60,000 optional letters", generate(regex="a?" * 60_000), COMPILERS),
    ("20,000 repeated groups", generate(regex="(a|b)*" * 20_000), COMPILERS),
    ("stacks of nested stars", generate(regex=("(" * 60 + "a" + ")*" * 60) * 1000), COMPILERS),
    ("nested repeats", generate(regex="((a{1,500}){1,500}){1,500}")),
    ("huge count", generate(regex="a{1,2000000000}")),
    ("count of any letter", generate(regex=".{1,100000}", new=64)),
    ("sequence of counts", generate(regex="[a-z]{0,1000}" * 50)),
    ("exponential determinisation", generate(regex="(a|b)*a(a|b){24}")),
    ("deep groups", generate(regex="(" * 5000 + "a" + ")" * 5000)),
    ("alternatives", generate(regex="|".join(f"word{i}" for i in range(5000)))),
    ("classes", generate(regex="[\\u0000-\\uffff]{1,300}[^a-z]{1,300}")),
    ("1 MiB of regex", generate(regex="a" * (1 << 20))),
    ("left recursion", generate(ebnf='root ::= root "a" | "b"')),
    ("a rule that repeats itself", generate(ebnf="root ::= root{2}")),
    ("an unused rule that repeats itself", generate(ebnf='root ::= "a"\nx ::= x{0,2}')),
    ("rules that repeat each other", generate(ebnf="root ::= x{2}\nx ::= y\ny ::= root{2}")),
    ("a rule in a tag that repeats itself", generate(structural_tag=json.dumps({"type": "structural_tag", "format": {
        "type": "grammar", "grammar": "root ::= (root){0,2}"}}))),
    ("5,000 rules that repeat the next one", generate(ebnf="root ::= r0\n" + "\n".join(
        f"r{i} ::= r{i + 1}{{2}}" for i in range(5_000)) + '\nr5000 ::= "x"'), COMPILERS),
    ("a pattern of 100,000 stars", schema({"type": "string", "pattern": "a" + "*" * 100_000})),
    ("a pattern of 20,000 counts", schema({"type": "string", "pattern": "a" + "{1}" * 20_000})),
    ("a pattern of deep groups", schema({"type": "string", "pattern": "(" * 60_000 + "a" + ")" * 60_000})),
    ("a pattern of deep repeats", schema({"type": "string", "pattern": "(?:" * 15_000 + "a" + ")*" * 15_000})),
    ("names with a pattern of stars", schema({"type": "object", "patternProperties": {"a" + "*" * 60_000: {"type": "string"}}})),
    ("names of deep groups", schema({"type": "object", "propertyNames": {"pattern": "(" * 60_000 + "a" + ")" * 60_000}})),
    ("a pattern of 60,000 alternatives", schema({"type": "string", "pattern": "a|" * 60_000 + "a"}), COMPILERS),
    ("mutual recursion without end", generate(ebnf="root ::= a\na ::= b\nb ::= a")),
    ("ambiguous rules", generate(ebnf='root ::= s\ns ::= s s | "a" | ""', new=64)),
    ("nullable loop", generate(ebnf='root ::= (("a"*)*)*', new=64)),
    ("nested repeats of rules", generate(ebnf='root ::= a{1,300}\na ::= b{1,300}\nb ::= "x"{1,300}')),
    ("doubling rules", generate(ebnf="root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)) + '\nr40 ::= "a"')),
    ("10,000 rules", generate(ebnf="root ::= r0\n" + "\n".join(f'r{i} ::= "{i}" r{i + 1}' for i in range(10_000)) + '\nr10000 ::= "."')),
    ("deep schema", schema(DEEP)),
    ("very deep schema", schema(json.loads('{"items":' * 90 + "{}" + "}" * 90)), {"statuses": frozenset({200, 400})}),
    ("schema of fans", schema(FANS)),
    ("schema that refers to itself", schema({"$ref": "#"})),
    ("recursive schema", schema({"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}, new=64)),
    ("1000 optional properties", schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}})),
    ("large bounds", schema({"type": "array", "minItems": 100_000, "maxItems": 1_000_000, "items": {"type": "integer"}})),
    ("length of a string", schema({"type": "string", "minLength": 1, "maxLength": 10_000_000})),
    ("range of an integer", schema({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1, "multipleOf": 999_983})),
    ("100,000 values", schema({"enum": [f"value {i}" for i in range(100_000)]})),
    ("hostile pattern", schema({"type": "string", "pattern": "^((a{1,300}){1,300}){1,300}$"})),
    ("structural tag with repeats", generate(structural_tag=json.dumps({"type": "structural_tag", "format": {
        "type": "repeat", "min": 0, "max": 2_000_000_000, "content": {"type": "const_string", "value": "a"}}}))),
    ("64 clients, 64 grammars", generate(regex="(a|b)*a(a|b){18}"), SIXTY_FOUR),
    # The clients share the workers, so all of them end late.
    ("64 clients, slow masks", generate(regex="([a-zA-Z0-9 ]{1,40}[ ,.]?){1,200}", new=64),
     {**SIXTY_FOUR, "answers": False}),
    ("clients that leave while 64 grammars are compiled", (post("/generate", {"text": ["a"] * 64, "sampling_params": [
        {"regex": f"(a|b)*a(a|b){{{i % 12 + 1}}}{i}!", "max_new_tokens": 4} for i in range(64)]})[0], ("wait", 0.05), ("reset",)),
     {**SIXTY_FOUR, "answers": False}),
    ("choices with masks", generate(regex=".{1,2000}", n=64, new=32), {"clients": 1, "answer_bytes": 1 << 20}),
    ("a grammar for each of 64 prompts", post("/generate", {"text": ["a"] * 64, "sampling_params": [
        {"regex": f"(a|b)*a(a|b){{{i % 12 + 1}}}{i}", "max_new_tokens": 4} for i in range(64)]}),
     {"answer_bytes": 1 << 20, "clients": 2}),
    ("a grammar for each of 65 prompts", post("/generate", {"text": ["a"] * 65, "sampling_params": [
        {"regex": f"a{i}", "max_new_tokens": 4} for i in range(65)]}), {"statuses": BAD}),
    # The added tokens that a grammar's text names decide for which vocabulary it is compiled.
    ("64 grammars with different added tokens", post("/generate", {"text": ["a"] * 64, "sampling_params": [
        {"ebnf": 'root ::= "a"  # ' + " ".join(name for bit, name in enumerate(ADDED_TOKENS) if i >> bit & 1),
         "max_new_tokens": 4} for i in range(64)]}), {"answer_bytes": 1 << 20, "clients": 2}),
    # Many patterns, none of which takes long, and a broken one behind them.
    ("200 patterns before a broken one", generate(json_schema={"type": "object", "properties": {
        **{f"p{i}": {"type": "string", "pattern": "((a|b)?c*){90}"} for i in range(200)},
        "q": {"type": "string", "pattern": "a{3,1}"}}}), {"statuses": BAD, "clients": 2, **COMPILERS}),
    ("a grammar and a stop expression", generate(regex="[a-z ]{1,2000}", stop_regex="([a-z]+ ?)+#", new=64), {"clients": 8}),
    ("streams with a grammar, begun and left", (*post("/generate", {"text": "a", "stream": True, "sampling_params": {
        "regex": "([a-z]{1,20} ){1,400}", "max_new_tokens": 500}})[:1], ("wait", 0.05), ("reset",)),
     {"clients": 32, "answers": False}),
    ("classes of all letters", generate(ebnf='root ::= ([^\\x00-\\x1f]{1,40} [\\u0100-\\uffff]){1,40}', new=32)),
    ("response_format with a deep schema", chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": DEEP}})),
], memory_bytes=320 << 20, clients=2)


def tool(i, parameters=None):
    return {"type": "function", "function": {"name": f"f{i}", "parameters": parameters or {"type": "object"}}}


def nested(depth):
    value = {"type": "object"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value, "b": {"type": "string"}}, "required": ["a"]}
    return value


def strict_tool(parameters):
    return {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}


def arrays(depth, value):
    for _ in range(depth):
        value = {"type": "array", "items": value}
    return value


TOOLS = rows("tools", [
    # Workers parse these bodies, because preparing the schemas of tools costs more than reading them.
    ("64 clients, nested parameters", chat(tools=[tool(i, nested(30)) for i in range(6)], tool_choice="required"),
     {**SIXTY_FOUR, "statuses": BAD | {503}}),
    ("64 clients, a strict tool of 20 nested arrays", chat(max_tokens=9999, tools=[strict_tool(arrays(20, {"enum": [0] * 60}))]),
     {**SIXTY_FOUR, "statuses": BAD | {503}}),
    # The message of an error has the place of the schema, but 12,000 places below such a name would need 700 MB.
    ("a long name above 12,000 schemas", post("/tokenize", {
        "messages": [{"role": "user", "content": "a"}],
        "tools": [strict_tool({"type": "object", "properties": {"k" * 60_000: {"anyOf": [{}] * 12_000}}})]}),
     {"memory_bytes": 64 << 20, "answer_ratio": 20}),
    ("1024 tools", chat(tools=[tool(i) for i in range(1024)])),
    ("1025 tools", chat(tools=[tool(i) for i in range(1025)]), {"statuses": BAD}),
    ("128 tools, required", chat(tools=[tool(i) for i in range(128)], tool_choice="required")),
    ("129 tools, required", chat(tools=[tool(i) for i in range(129)], tool_choice="required"), {"statuses": BAD}),
    ("deep parameters", chat(tools=[tool(0, DEEP)], tool_choice="required")),
    ("fans of references", chat(tools=[tool(0, FANS)], tool_choice="required")),
    ("hostile pattern in parameters", chat(tools=[tool(0, {"type": "object", "properties": {
        "a": {"type": "string", "pattern": "((a{1,200}){1,200}){1,200}"}}})], tool_choice="required")),
    ("a description of 1 MiB", chat(tools=[{"type": "function", "function": {"name": "f", "description": "d" * (1 << 20)}}])),
    ("a name of 64 KiB", chat(tools=[tool("x" * 65536)])),
    ("calls in the conversation", chat([{"role": "user", "content": "a"}] + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}}]} for i in range(500)])),
    ("arguments that are not JSON", chat([{"role": "user", "content": "a"}, {
        "role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {
            "name": "f", "arguments": "[" * 100_000}}]}])),
    ("10,000 messages", chat([{"role": "user", "content": "a"}] * 10_000)),
    ("markers of calls in the text", chat("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" * 50, max_tokens=32)),
], memory_bytes=320 << 20, clients=2)

# Two ranks share the model (--tp-size 2), and every step waits for both.
RANKS = rows("ranks", [
    ("n of 64", generate(n=64, new=16), {"answer_bytes": 2 << 20, "memory_bytes": 96 << 20}),  # a workspace for each rank
    ("64 clients, nested quantifier", stop("(.+)+#"), SIXTY_FOUR),
    ("64 clients, prompts of 2000 tokens", post("/generate", {
        "input_ids": [(7 * i) % 4000 for i in range(2000)], "sampling_params": {"max_new_tokens": 1}}),
     {**SIXTY_FOUR, "answers": False}),
    ("128 top probabilities", post("/generate", {
        "text": "a b c d " * 100, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 128,
        "sampling_params": {"max_new_tokens": 16}}), {"answer_bytes": 8 << 20, "memory_bytes": 96 << 20}),
    ("a schema that refers to itself", schema({"type": "object", "properties": {"a": {"$ref": "#"}}}, new=64),
     {"memory_bytes": 320 << 20}),
    ("streams begun and left, 64 clients", (*post("/generate", {"text": "a", "stream": True, "sampling_params": {
        "max_new_tokens": 1000, "ignore_eos": True}})[:1], ("wait", 0.02), ("reset",)),
     {"clients": 64, "answers": False, "seconds": 1.0}),
    ("batches left", (*post("/generate", {"text": ["a"] * 256, "sampling_params": {"max_new_tokens": 500}})[:1],
                      ("wait", 0.05), ("reset",)), {"clients": 8, "answers": False}),
    ("a body that is not JSON", post("/generate", b'{"text":' + b"[" * 100_000), {"statuses": BAD}),
], group="ranks")

CASES = STOP_REGEX + AMPLIFY + LIMITS + GRAMMARS + TOOLS + RANKS
