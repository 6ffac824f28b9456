#!/usr/bin/env python3
"""Tests that speculation with the bundled model's NextN layer (--speculative-algorithm NEXTN) changes no token: `generate` and
`serve` answer as they do without it, at temperature 0 and with a seed, with chains and trees of drafts of several sizes, in both
loops and on ranks. The figures of meta_info, /server_info, /metrics and the log say how much it has guessed, and `eval` reports the accept length of each task.
Flags that are impossible give an error of one line."""
import json
import re
import sys
import threading

from command_line import TINY, expect_error, run, run_tests
from counting import check
from serving import Server

NEXTN = ["--speculative-algorithm", "NEXTN"]
TREE = ["--speculative-num-steps", 3, "--speculative-eagle-topk", 4, "--speculative-num-draft-tokens", 8]
WIDE_TREE = ["--speculative-num-steps", 6, "--speculative-eagle-topk", 8, "--speculative-num-draft-tokens", 64]
PROMPTS = ["What is 12 + 30?", "Repeat: red green blue", "Write a short story about a brave fox."]
SAMPLINGS = [{"temperature": 0}, {"temperature": 0.8, "sampling_seed": 7},
             {"temperature": 1, "sampling_seed": 8, "top_p": 0.9, "frequency_penalty": 0.5, "min_new_tokens": 8}]


def generated(*flags):
    code, out, err = run("generate", "--model-path", TINY, "--device", "cpu", "--json", "--max-new-tokens", 64, *flags)
    return json.loads(out) if code == 0 else {"error": err}


def commands(_work, _model):
    shapes = [["--speculative-num-steps", 1], ["--speculative-num-steps", 6], ["--disable-overlap-schedule"],
              ["--tp-size", 2], ["--speculative-fixed"], [], TREE, [*TREE, "--speculative-fixed"],
              [*WIDE_TREE, "--speculative-fixed", "--disable-overlap-schedule"], [*TREE, "--speculative-fixed", "--tp-size", 2],
              [*TREE, "--speculative-fixed", "--tp-size", 4], [*TREE, "--speculative-fixed", "--kv-cache-dtype", "fp8_e4m3"]]
    for prompt in PROMPTS:
        for sampling in (["--temperature", 0], ["--temperature", 1, "--seed", 3]):
            ask = ["--prompt", prompt, "--logprobs", *sampling]
            plain = generated(*ask)
            check(f"generate {sampling}: {prompt}", len(plain.get("output_ids", [])) > 0, plain)
            for shape in shapes if prompt == PROMPTS[0] else [[], [*TREE, "--speculative-fixed"]]:
                # Ranks and the format of the cache change the last bits, so the oracle has these flags too.
                changes = next((shape[i:] for i, flag in enumerate(shape) if flag in ("--tp-size", "--kv-cache-dtype")), [])
                expected = generated(*ask, *changes) if changes else plain
                found = generated(*ask, *NEXTN, *shape)
                for key in ("text", "output_ids", "finish_reason", "output_token_logprobs"):
                    check(f"generate {sampling} {shape} {prompt}: {key} is as without speculation",
                          key in found and found[key] == expected.get(key), (found, expected))


def request(prompt, sampling, **more):
    return {"text": prompt, "return_logprob": True, **more, "sampling_params": {"max_new_tokens": 64, **sampling}}


def answer(server, body):
    status, found = server.post("/generate", body)
    return found if status == 200 else {"error": found}


def asked(server):
    """Returns all answers, asked one after another and then all at once."""
    bodies = [request(prompt, sampling) for prompt in PROMPTS for sampling in SAMPLINGS]
    bodies.append(request(PROMPTS[0], {"temperature": 0, "stop": ["4"]}))
    bodies.append(request("Give me a JSON object.", {"temperature": 0, "json_schema": json.dumps(
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})}))
    answers = [answer(server, body) for body in bodies]
    together = [None] * len(bodies)
    threads = [threading.Thread(target=lambda i=i: together.__setitem__(i, answer(server, bodies[i])))
               for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers + together


def values_of(found):
    return (found.get("text"), found.get("output_ids"), found.get("meta_info", {}).get("finish_reason"),
            found.get("meta_info", {}).get("output_token_logprobs"))


def answers_alike(server, name, expected, num_drafts):
    """Checks the answers of a server that speculates, their counts, and streams."""
    found = asked(server)
    for one, other in zip(expected, found):
        check(f"{name} answers as without speculation", values_of(one) == values_of(other), (one, other))
    for one in found:
        counts(one, num_drafts)
    streams(server)


def mean_length(server):
    info = json.loads(server.request("GET", "/server_info")[2])
    return info["internal_states"][0]["avg_spec_accept_length"]


def served(_work, _model):
    # With speculation one token less of a cached prefix is used. If that token was generated, it is computed again
    # as a prompt token, and its last bits may differ. Therefore there is no prefix cache here.
    flags = ["--device", "cpu", "--enable-metrics", "--disable-radix-cache"]
    with Server(*flags) as server:
        expected = asked(server)
        check("all requests are answered", all("error" not in found for found in expected), expected)
        meta = expected[0]["meta_info"]
        check("without the flag nothing is verified", (meta["spec_verify_ct"], meta["spec_accept_length"]) == (0, None), meta)
        metrics = server.request("GET", "/metrics")[2].decode()
        check("without the flag the gauges are 0", gauges(metrics) == {"length": 0, "rate": 0}, gauges(metrics))
        mean = mean_length(server)
        check("without the flag there is no mean", mean is None, mean)

    with Server(*flags, *NEXTN) as server:
        for one, other in zip(expected, asked(server)):
            check("a server that adapts answers as without speculation", values_of(one) == values_of(other), (one, other))

    with Server(*flags, *NEXTN, "--speculative-fixed", "--decode-log-interval", 4) as server:
        answers_alike(server, "the server", expected, 3)
        metrics = gauges(server.request("GET", "/metrics")[2].decode())
        check("a verification brings several tokens", 1.5 < metrics["length"] <= 4, metrics)
        check("a share of the drafts is accepted", 0.2 < metrics["rate"] < 1, metrics)
        mean = mean_length(server)
        check("/server_info has the mean", 1.5 < mean <= 4, mean)
        check("the server ends in order", server.stop() == 0, server.text())
        line = re.search(r"Decode batch.*accept len: (\d\.\d\d), accept rate: (\d\.\d\d), cuda graph: False.*"
                         r"verify width: \d\.\d\d", server.text())
        check("the log says how much is accepted", line is not None, server.text())
    trees(flags, expected, mean)


def trees(flags, expected, mean_of_chains):
    """Checks a server that verifies trees against the answers without speculation."""
    with Server(*flags, *NEXTN, *TREE, "--speculative-fixed", "--decode-log-interval", 4) as server:
        answers_alike(server, "a server with draft trees", expected, 7)
        mean = mean_length(server)
        check("a verification brings more tokens than with chains, and no more than a path has", mean_of_chains < mean <= 4,
              (mean_of_chains, mean))
        metrics = gauges(server.request("GET", "/metrics")[2].decode())
        check("the gauge of the length is the mean", abs(metrics["length"] - mean) < 1e-3, (metrics, mean))
        check("at most one draft of each depth is accepted", 0.1 < metrics["rate"] <= 3 / 7 + 0.05, metrics)
        check("the log has the number of nodes", re.search(r"Decode batch.*verify width: [78]\.\d\d", server.text()) is not None,
              server.text())
    with Server(*flags, *NEXTN, *TREE) as server:
        for one, other in zip(expected, asked(server)):
            check("a server whose trees adapt answers as without speculation", values_of(one) == values_of(other), (one, other))


def gauges(metrics):
    return {name: float(re.search(rf"^sglang:spec_accept_{name}\{{.*\}} (\S+)$", metrics, re.M)[1]) for name in ("length", "rate")}


def counts(found, most_drafts):
    """Checks the figures of one answer against each other. A verification has at most so many drafts."""
    meta = found.get("meta_info", {})
    check("meta_info counts verifications", meta.get("spec_verify_ct") is not None, found)
    if not meta.get("spec_verify_ct"):
        return
    verifications, drafts, accepted = (meta[f"spec_{name}"] for name in ("verify_ct", "draft_token_num", "accept_token_num"))
    check("drafts are as many as the flags say, fewer at the end", verifications - 1 <= drafts <= most_drafts * verifications, meta)
    check("no more is accepted than guessed", 0 <= accepted <= drafts, meta)
    check("the rate is their share", abs(meta["spec_accept_rate"] - accepted / max(drafts, 1)) < 1e-6, meta)
    check("the length is tokens for each verification",
          abs(meta["spec_accept_length"] - meta["completion_tokens"] / verifications) < 1e-6, meta)
    # The prompt's step samples a token too. A request may end before the last of the accepted tokens.
    check("each verification brings its token and the accepted ones",
          meta["completion_tokens"] <= 1 + verifications + accepted <= meta["completion_tokens"] + 3, meta)


def streams(server):
    body = request(PROMPTS[2], {"temperature": 0})
    whole = answer(server, body)
    events = [event for event in server.events("/generate", {**body, "stream": True}) if event != "[DONE]"]
    check("a stream ends with the whole text", values_of(events[-1]) == values_of(whole), (events[-1], whole))
    chat = {"model": "default", "messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 48, "temperature": 0}
    _, one = server.post("/v1/chat/completions", chat)
    parts = [event["choices"][0]["delta"].get("content") or "" for event in server.events("/v1/chat/completions", {
        **chat, "stream": True}) if event != "[DONE]" and event["choices"]]
    check("a streamed chat has the text of one in a piece", "".join(parts) == one["choices"][0]["message"]["content"], (parts, one))


def refusals(_work, model):
    base = ["generate", "--model-path", TINY, "--device", "cpu", "--prompt", "Hello", "--max-new-tokens", 4, "--temperature", 0]
    expect_error("another algorithm", 2, ["--speculative-algorithm", "EAGLE3", "NEXTN"], *base, "--speculative-algorithm", "EAGLE3")
    expect_error("steps without an algorithm", 2, ["--speculative-num-steps", "needs --speculative-algorithm"], *base,
                 "--speculative-num-steps", 2)
    expect_error("a fixed width without an algorithm", 2, ["--speculative-fixed", "needs --speculative-algorithm"], *base,
                 "--speculative-fixed")
    expect_error("no steps", 2, ["--speculative-num-steps", "0"], *base, *NEXTN, "--speculative-num-steps", 0)
    expect_error("a threshold", 2, ["--speculative-accept-threshold-single", "would change the output"], *base, *NEXTN,
                 "--speculative-accept-threshold-single", 0.9)
    expect_error("a model without the layer", 2, ["--speculative-algorithm", "has no NextN layer"], "generate", "--model-path", model,
                 "--load-format", "dummy", "--device", "cpu", "--input-ids", "1,2,3", *NEXTN)
    simulate = "--speculative-simulate-acceptance"
    for name, value, wanted in (("a word", "0.9,half", ["half is not a number", "[0, 1]"]), ("1.5", "0.9,1.5", ["1.5", "[0, 1]"]),
                                ("nothing", "", ["[0, 1]"]), ("four depths of three", "1,1,1,1", ["4 numbers", "at most 3"])):
        expect_error(f"{name} as simulated acceptance", 2, [f"{simulate} {value}", *wanted], *base, *NEXTN, simulate, value)
    expect_error("simulated acceptance without an algorithm", 2, [simulate, "needs --speculative-algorithm"], *base, simulate, "0.5")
    expect_error("an evaluation with simulated acceptance", 2, [simulate, "does not apply to `hadal eval`"], "eval", "--model-path", TINY,
                 "--data", TINY / "eval/copy.jsonl", *NEXTN, simulate, "0.5")
    expect_error("a tree that its steps cannot make", 2, ["--speculative-num-draft-tokens 8", "at most 7"], *base, *NEXTN,
                 "--speculative-num-steps", 2, "--speculative-eagle-topk", 2, "--speculative-num-draft-tokens", 8)
    expect_error("a tree with sparse attention", 2, ["speculative-eagle-topk is 4", "sparse attention: 1"], *base, *NEXTN, *TREE,
                 "--load-format", "dummy", "--json-model-override-args", json.dumps(
                     {"architectures": ["DeepseekV32ForCausalLM"], "index_n_heads": 16, "index_head_dim": 128, "index_topk": 48}))
    code, out, err = run(*base, "--speculative-algo", "NEXTN", "--speculative-draft", "SGLang/DeepSeek-V3-NextN",
                         "--speculative-num-steps", 2, "--speculative-eagle-topk", 4, "--speculative-num-draft-tokens", 4,
                         env={"HF_HUB_OFFLINE": "1"})
    check("the published command line runs, and says what it does not do", code == 0 and "own NextN layer is used" in err, err)
    check("the published command line gives the same text", out == run(*base)[1], out)


def evaluated(_work, _model):
    tasks = ("copy", "addition")
    data = [TINY / f"eval/{task}.jsonl" for task in tasks]
    base = ["eval", "--model-path", TINY, "--device", "cpu", "--limit", 6, "--data", *data]
    scores, tables = {}, {}
    # An answer of one token needs no verification.
    for name, flags in (("plain", []), ("speculated", [*NEXTN, "--speculative-fixed"]), ("short", [*NEXTN, "--max-new-tokens", 1])):
        code, out, err = run(*base, *flags, "--json")
        scores[name] = json.loads(out) if code == 0 else {"error": err}
        code, tables[name], err = run(*base, *flags)
        check(f"eval of {name} answers prints a table", code == 0 and "correct" in tables[name], err)
    check("eval has scores and accept lengths of every task", all(set(found.get("tasks", {})) == set(tasks) for found in scores.values()),
          scores)
    rows = {name: {**found["tasks"], "all": found["all"]} for name, found in scores.items()}
    for task, plain in rows["plain"].items():
        speculated = rows["speculated"][task]
        length = speculated.pop("accept_length")
        check(f"eval of {task}: without speculation there is no accept length", plain.pop("accept_length") is None, scores)
        check(f"eval of {task}: speculation changes no score", speculated == plain, scores)
        check(f"eval of {task}: a verification brings several tokens", 1 < length <= 4, scores)
        check(f"eval of {task}: its row ends with the accept length",
              re.search(rf"^{task} .*% +{length:.2f}$", tables["speculated"], re.M) is not None, tables)
        check(f"eval of {task}: without a verification there is no accept length", rows["short"][task]["accept_length"] is None, scores)
    check("most answers are right", rows["plain"]["all"]["correct"] > 6, scores)
    check("eval has no accept length where nothing was verified", not any("accept" in tables[name] for name in ("plain", "short")), tables)


def simulated(work, _model):
    chances = [*NEXTN, "--speculative-fixed", "--speculative-simulate-acceptance", "1,0.5"]
    with Server("--device", "cpu", "--decode-log-interval", 4, *chances) as server:
        meta = answer(server, request(PROMPTS[2], {"temperature": 0, "sampling_seed": 3, "ignore_eos": True}))["meta_info"]
        # The last verification may have room for no draft.
        check("the first draft is always accepted, and the third never is",
              meta["spec_verify_ct"] - 1 <= meta["spec_accept_token_num"] <= 2 * meta["spec_verify_ct"], meta)
        info = json.loads(server.request("GET", "/server_info")[2])
        check("/server_info says simulated", info["internal_states"][0]["spec_acceptance"] == "simulated", info)
        check("the log says simulated", re.search(r"Decode batch.*acceptance: simulated", server.text()) is not None
              and "speculation is simulated chances=1,0.5" in server.text(), server.text())
    rows = work / "simulated.jsonl"
    code, out, err = run("bench", "offline", "--model-path", TINY, "--device", "cpu", "--dataset-name", "random-ids", "--num-prompts", 2,
                         "--random-input-len", 16, "--random-output-len", 32, "--skip-warmup", "--result-filename", rows, *chances)
    check("bench offline says simulated", code == 0 and "Accept length (simulated):" in out, (out, err))
    check("its row says simulated", json.loads(rows.read_text())["acceptance"] == "simulated", rows.read_text())


def claims(work, model):
    refusals(work, model)
    simulated(work, model)
    commands(work, model)
    evaluated(work, model)
    served(work, model)


if __name__ == "__main__":
    sys.exit(run_tests(claims))
