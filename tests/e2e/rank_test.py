#!/usr/bin/env python3
"""Tests that several CPU ranks which share a model (--tp-size, --ep-size) answer like one, from every command and over
HTTP. A split that the model does not allow is an error of one line that says which splits are allowed."""
import json
import sys

from command_line import CONFIG, TINY, expect_error, read_logits, run, run_tests
from counting import check
from serving import Server

PROMPTS = ["What is 12 + 30?", "Repeat: red green blue", "Count from 3 to 9."]
SPLITS = [(2, 1), (4, 2), (8, 8)]


def flags(tp, ep):
    return ["--device", "cpu", "--tp-size", tp, "--ep-size", ep]


def answers(server):
    out = []
    for text in PROMPTS:
        status, answer = server.post("/generate", {"text": text, "sampling_params": {"temperature": 0,
                                                                                     "max_new_tokens": 24}})
        out.append((status, answer.get("output_ids") if isinstance(answer, dict) else answer))
    return out


def served(_work, _model):
    with Server("--device", "cpu") as server:
        expected = answers(server)
    check("one rank answers", all(status == 200 for status, _ in expected), expected)
    for tp, ep in SPLITS:
        with Server(*flags(tp, ep), "--enable-metrics") as server:
            got = answers(server)
            check(f"tp {tp} ep {ep}: the server answers like one rank", got == expected, (got, expected))
            info = json.loads(server.request("GET", "/server_info")[2])
            check(f"tp {tp} ep {ep}: /server_info says so", (info["tp_size"], info["ep_size"]) == (tp, ep), info)
            check(f"tp {tp} ep {ep}: the server ends in order", server.stop() == 0, server.text())


def logits(work, model):
    base = ["logits", "--model-path", model, "--load-format", "dummy", "--dtype", "float32", "--input-ids",
            "1,2,3,4,5,6,7,8,9"]
    code, _, err = run(*base, "--device", "cpu", "--output", work / "one.safetensors")
    check("logits of one rank", code == 0, err)
    shape, expected = read_logits(work / "one.safetensors")
    largest = max(map(abs, expected))
    for tp, ep in [(2, 1), (2, 2), (4, 1), (4, 4)]:
        path = work / f"tp{tp}ep{ep}.safetensors"
        code, _, err = run(*base, *flags(tp, ep), "--output", path)
        check(f"logits at tp {tp} ep {ep}", code == 0, err)
        got_shape, got = read_logits(path)
        worst = max(abs(a - b) for a, b in zip(got, expected))
        check(f"logits at tp {tp} ep {ep} are those of one rank", got_shape == shape and worst <= 1e-5 * largest,
              f"{worst} of {largest}")


def commands(_work, model):
    base = ["--model-path", model, "--load-format", "dummy"]
    code, out, err = run("info", *base, *flags(4, 2), "--json")
    check("info knows ranks", code == 0, err)
    ranks = json.loads(out)["ranks"] if code == 0 else []
    check("info: four ranks with a head each", [rank["num_heads"] for rank in ranks] == [1] * 4, ranks)
    check("info: two ranks share each half of the experts",
          [rank["experts"] for rank in ranks] == [[0, 8], [0, 8], [8, 16], [8, 16]], ranks)
    whole = json.loads(out)["weight_bytes"] if code == 0 else 0
    check("info: each rank reads less than the whole",
          all(whole / 4 <= rank["weight_bytes"] < whole for rank in ranks), (whole, ranks))
    code, out, err = run("generate", "--model-path", TINY, "--prompt", PROMPTS[0], "--temperature", 0, "--json")
    one = json.loads(out)["output_ids"] if code == 0 else err
    code, out, err = run("generate", "--model-path", TINY, "--prompt", PROMPTS[0], "--temperature", 0, "--json",
                         *flags(4, 2))
    check("generate on ranks gives the same tokens", code == 0 and json.loads(out)["output_ids"] == one, err or (out, one))
    code, out, err = run("bench", "one-batch", *base, *flags(2, 1), "--batch-size", 2, "--input-len", 16, "--output-len", 4)
    check("bench one-batch runs on ranks", code == 0, err)


def refusals(_work, model):
    base = ["info", "--model-path", model, "--load-format", "dummy", "--device", "cpu"]
    heads = CONFIG["num_attention_heads"]
    expect_error("tp that does not divide the heads", 2, ["--tp-size 3", f"num_attention_heads, which is {heads}", "1, 2, 4"],
                 *base, "--tp-size", 3)
    expect_error("more ranks than heads", 2, ["--tp-size 8", "1, 2, 4"], *base, "--tp-size", 8)
    expect_error("ep that does not divide tp", 2, ["--ep-size 4", "--tp-size"], *base, "--tp-size", 2, "--ep-size", 4)
    expect_error("ep without ranks", 2, ["--ep-size 2", "--tp-size"], *base, "--ep-size", 2)
    expect_error("no ranks", 2, ["--tp-size", "1"], *base, "--tp-size", 0)
    expect_error("text", 2, ["--tp-size", "two"], *base, "--tp-size", "two")


def claims(work, model):
    for part in (commands, refusals, logits, served):
        part(work, model)


if __name__ == "__main__":
    sys.exit(run_tests(claims))
