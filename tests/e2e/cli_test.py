#!/usr/bin/env python3
"""Tests help, errors, `hadal info` and the tokenizer commands of the hadal binary.

HADAL_BINARY names the binary (default build/cpu-release/hadal). It needs only the standard library.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from command_line import BIN, CONFIG, HAS_TOKENIZER, TINY, check, error_lines, expect_error, run, run_tests


def test_help():
    rc, out, _ = run("--version")
    check("--version prints the version", rc == 0 and out.startswith("hadal "), out)
    rc, out, _ = run("--help")
    check("--help lists the commands", rc == 0 and "generate" in out and "serve" in out, out)
    for command in ["generate", "chat", "serve", "logits", "tokenize", "detokenize", "info", "bench one-batch", "eval"]:
        rc, out, _ = run(*command.split(), "--help")
        check(f"{command} --help lists --model-path", rc == 0 and "--model-path" in out, out)
        check(f"help {command} prints the same as {command} --help", run("help", *command.split()) == (0, out, ""))
    for words in (["tune", "--help"], ["tune", "help"], ["help", "tune"]):
        rc, out, _ = run(*words)
        check(f"{words} lists the commands of tune alone", rc == 0 and "tune moe" in out and "generate" not in out, out)
    expect_error("help for half a command names the whole ones", 2, ["'tune fp8'", "fp8-gemm or moe"], "help", "tune", "fp8")
    expect_error("help for an unknown command is an error", 2, ["'nonsense'", "--help"], "help", "nonsense")


def test_usage_errors(model):
    expect_error("a command is needed", 2, ["--help"])
    expect_error("missing tensors are listed line by line", 1, ["unexpected):\n  missing: model.layers.", "\n  missing: model."],
                 "generate", "--model-path", TINY, "--input-ids", "5",
                 "--json-model-override-args", '{"num_hidden_layers": 9}')
    expect_error("a line break in a value is written out", 2, ["a\\nb"], "generate", "--model-path", model, "--dtype", "a\nb")
    expect_error("a misspelt command gets a suggestion", 2, ["generate"], "genrate")
    expect_error("a misspelt second word gets a suggestion", 2, ["'eval gsm9k'", "did you mean gsm8k?"], "eval", "gsm9k")
    expect_error("charts are SVG alone", 2, ["--plot a.png", "must end in .svg"], "bench", "serving", "--plot", "a.png")
    for flag in ["--api-key", "--admin-api-key"]:  # an unset variable of a start script
        expect_error(f"{flag} must not be empty", 2, [flag, "empty"], "serve", "--model-path", model, flag, "")
    expect_error("a misspelt flag gets a suggestion", 2, ["--temperature"], "generate", "--temprature", "1")
    expect_error("a second prompt is refused", 2, ["--prompt b: --prompt a is given before it; must be given once"], "generate",
                 "--model-path", model, "--prompt", "a", "--prompt", "b")
    expect_error("generate needs a model", 2, ["--model-path"], "generate", "--prompt", "x")
    expect_error("-h is not read as a value", 2, ["--prompt", "needs a value"], "generate", "--prompt", "-h")
    expect_error("--stop must not be empty", 2, ["--stop"], "generate", "--model-path", model, "--input-ids", "5", "--stop", "")
    expect_error("a context holds two tokens or more", 2, ["--context-length 1", "[2,"], "generate", "--model-path", model,
                 "--input-ids", "5", "--context-length", "1")
    # The model has no weights, so any other order of the checks would give another error.
    for words in (["generate", "--input-ids", "5"], ["chat"], ["serve"], ["info"], ["bench", "offline"]):
        expect_error(f"{words[0]} refuses a context beyond the model's before it reads weights", 2,
                     ["--context-length 513: must be in [2, 512], the model's max_position_embeddings"], *words, "--model-path",
                     model, "--context-length", "513")
    expect_error("several devices are refused", 2, ["ranks share a model by --tp-size and --ep-size alone"], "generate", "--model", model, "--dp", "8")
    expect_error("--temperature must be a number", 2, ["--temperature nan"], "generate", "--model", model, "--temperature", "nan")
    expect_error("--top-p must be above 0", 2, ["--top-p 0"], "generate", "--model", model, "--top-p", "0")
    expect_error("token ids must be numbers", 2, ["--input-ids"], "generate", "--model", model, "--load-format", "dummy",
                 "--input-ids", "1,x")
    expect_error("token ids must be in the vocabulary", 2, ["4096", "4095"], "generate", "--model", model, "--load-format", "dummy",
                 "--input-ids", "1,4096")
    expect_error("a prompt must leave room in the context", 2, ["context"], "generate", "--model", model, "--load-format", "dummy",
                 "--input-ids", ",".join(["5"] * 512))
    expect_error("--device cuda needs a GPU", 1, ["--device cuda"], "generate", "--model", model, "--device", "cuda",
                 "--input-ids", "1")
    dummy = ["--model", model, "--load-format", "dummy"]
    expect_error("an empty token id is named", 2, ["--input-ids", "item 2 is empty"], "generate", *dummy, "--input-ids", "1,,2")
    expect_error("a trailing comma is named", 2, ["--input-ids", "item 3 is empty"], "generate", *dummy, "--input-ids", "1,2,")
    expect_error("chunks hold a token or more", 2, ["--chunked-prefill-size 0", "-1 or in [1,"], "generate", *dummy,
                 "--input-ids", "5", "--chunked-prefill-size", "0")
    expect_error("--top-logprobs needs --json", 2, ["--top-logprobs needs --json"], "generate", *dummy, "--input-ids",
                 "5", "--top-logprobs", "2")
    expect_error("a seed too large is refused with its range", 2, ["[0, 9223372036854775807]"], "generate", *dummy, "--seed", "9223372036854775808")
    expect_error("--temperature must be finite", 2, ["must be a finite number"], "generate", *dummy, "--temperature", "inf")
    expect_error("a misspelt value gets a suggestion", 2, ["did you mean fp8_e4m3?"], "generate", *dummy, "--kv-cache-dtype", "fp8")
    expect_error("a flag of another command is refused", 2,
                 ["does not apply to `hadal info`; it belongs to generate, chat"], "info", *dummy, "--stop", "x")
    expect_error("an empty value is shown", 2, ["--log-level '': must be one of"], "info", *dummy, "--log-level=")
    rc, _, err = run("info", *dummy, "--log-level", "\x1b[31m\nred")
    check("control bytes in an error are written out", rc == 2 and "\\x1b[31m\\nred" in err and "\x1b" not in err, repr(err))
    for name, value, wanted in [("JSON", "{", "JSON"), ("field", '{"num_layer": 2}', "unknown field"),
                                ("value", '{"num_hidden_layers": -1}', "num_hidden_layers")]:
        expect_error(f"an override with a bad {name} is refused", 2, ["--json-model-override-args", wanted], "info", *dummy,
                     "--json-model-override-args", value)
    expect_error("eval gsm8k names a file that is missing", 1, ["eval gsm8k", "F: no such file"], "eval", "gsm8k", "--data", "F",
                 "--model-path", model)
    expect_error("a directory that is missing is named", 1, ["/no/such/dir"], "info", "--model-path", "/no/such/dir")
    with tempfile.TemporaryDirectory() as empty:
        expect_error("an empty directory is said to be one", 1, [empty, "is an empty directory", "config.json"], "generate",
                     "--model-path", empty, "--prompt", "x")
        pathlib.Path(empty, "notes.txt").write_text("x", encoding="utf-8")
        expect_error("a directory without a model says what a model has", 1, [empty, "has no config.json", "safetensors"], "info",
                     "--model-path", empty)
        expect_error("fetch does not take a directory for a name", 2, [empty, "is a directory here", "org/name"], "fetch", empty)
        config = pathlib.Path(empty, "f.yaml")
        config.write_text("port:\nprot: 2\nhost: [a, b]\n", encoding="utf-8")
        expect_error("all faults of --config are reported at once", 2,
                     ["(1)", "f.yaml:1: port: has no value", "(2)", "unknown flag --prot", "(3)", "host: is a list"], "serve",
                     "--config", config)
    with tempfile.TemporaryDirectory() as home:
        expect_error("a hub id that is not in the cache is named", 1, ["deepseek-ai/DeepSeek-V3", "hadal fetch"], "info", "--model-path",
                     "deepseek-ai/DeepSeek-V3", "--offline", env={"HF_HOME": home})


def test_errors_name_flags(model):
    """Tests values that only the model or the prompt shows to be wrong. The model has no weights, so nothing is loaded
    before."""
    for wanted, *words in (("--max-new-tokens 600: must be in [0, 510], because the context has 512 tokens and the prompt 2",
                            "--max-new-tokens", "600"),
                           ("--max-new-tokens 19: must be in [0, 18]", "--max-new-tokens", "19", "--context-length", "20"),
                           ("--min-new-tokens 5: must be in [0, 4], the value", "--max-new-tokens", "4", "--min-new-tokens", "5"),
                           ("--stop-token-ids: contains the token 4096; must be in [0, 4095]", "--stop-token-ids", "4096"),
                           ("--logit-bias: contains the token 4096; must be in [0, 4095]", "--logit-bias", '{"4096": 1}'),
                           ("--logprob-start-len 2: must be in [-1, 1]", "--json", "--logprob-start-len", "2")):
        expect_error(f"generate {' '.join(words)}: the flag is named", 2, [wanted], "generate",
                     "--model-path", model, "--input-ids", "5,6", *words)
    ids = ["--model-path", model, "--input-ids", "4096"]
    expect_error("generate names --input-ids", 2, ["--input-ids: contains the token 4096; must be in [0, 4095]"], "generate", *ids)
    expect_error("logits names --input-ids", 2, ["--input-ids: contains the token 4096; must be in [0, 4095]"], "logits", *ids,
                 "--output", "x")
    expect_error("logits says that standard input has the wrong ids", 2, ["standard input: contains the token 4096"], "logits",
                 "--model-path", model, "--output", "x", stdin=b"4096")
    expect_error("the flag that limits the KV cache is named", 1,
                 ["--max-new-tokens 200: must be in [0, 62], because the KV cache (--max-total-tokens) has 64 tokens"], "generate",
                 "--model-path", model, "--load-format", "dummy", "--input-ids", "5,6", "--max-total-tokens", "64",
                 "--max-new-tokens", "200")


def test_missing_files(model, work):
    """Tests every flag that names a file or a directory, with one that is missing."""
    missing = str(work / "missing")
    ids = ["--model-path", model, "--load-format", "dummy", "--input-ids", "5"]
    serve = ["serve", "--model-path", model, "--load-format", "dummy", "--skip-tokenizer-init", "--port", "0"]
    speculate = ["--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", missing]
    sharegpt = ["--dataset-name", "sharegpt", "--dataset-path", missing]
    for words in (["generate", "--model-path", missing, "--prompt", "x"], ["tokenize", "--model-path", missing, "--text", "x"],
                  ["generate", *ids, "--config", missing], ["serve", "--config", missing],
                  ["generate", *ids, "--kernel-config-dir", missing], ["generate", *ids, "--tokenizer-path", missing],
                  ["generate", *ids, *speculate], ["logits", *ids, "--output", f"{missing}/x"],
                  ["eval", "--model-path", model, "--data", missing], ["eval", "gpqa", "--model-path", model, "--data", missing],
                  ["bench", "serving", "--model", "m", "--tokenizer-path", missing, *sharegpt],
                  [*serve, "--api-key-file", missing], [*serve, "--ssl-keyfile", missing, "--ssl-certfile", missing],
                  [*serve, "--audit-log", f"{missing}/x"], [*serve, "--record-plans", f"{missing}/x"]):
        expect_error(f"{' '.join(map(str, words))}: a missing file is a failure and no wrong usage", 1, [missing], *words)
    keys = work / "keys"
    keys.write_text("a b c\n")
    expect_error("a broken key file is a failure and no wrong usage", 1, [str(keys)], *serve, "--api-key-file", keys)


def test_file_errors(model, work):
    expect_error("a directory without weights is refused", 1, ["safetensors"], "generate", "--model", model, "--input-ids", "1")
    for name, change, wanted in [
        ("architecture", {"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ("gate", {"topk_method": "best_of"}, "best_of"),
        ("rope", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "dynamic"),
        ("quantisation", {"quantization_config": {"quant_method": "awq"}}, "awq"),
    ]:
        bad = work / f"bad_{name}"
        bad.mkdir()
        (bad / "config.json").write_text(json.dumps({**CONFIG, **change}))
        expect_error(f"a config with an unknown {name} is refused", 1, [wanted], "info", "--model-path", bad)
    broken = work / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    expect_error("a broken config.json is refused", 1, ["config.json"], "info", "--model-path", broken)
    (broken / "config.json").write_text(json.dumps(CONFIG))
    (broken / "model.safetensors").write_bytes(b"\xff" * 64)
    expect_error("a broken weight file is refused", 1, ["model.safetensors"], "generate", "--model", broken, "--input-ids", "1")
    (broken / "generation_config.json").write_text('{"top_p": 3}')
    expect_error("a broken generation_config.json is refused", 1, ["top_p"], "generate", "--model", broken, "--input-ids", "1")
    (broken / "tokenizer.json").write_text("[]")
    expect_error("a broken tokenizer.json is refused", 1, ["tokenizer.json"], "tokenize", "--model", broken, "--text", "x")


def test_info(model):
    rc, out, err = run("info", "--model-path", model, "--json")
    check("info --json succeeds", rc == 0, err)
    info = json.loads(out)
    for key in ["architecture", "num_parameters", "weight_bytes", "kv_bytes_per_token", "max_total_num_tokens"]:
        check(f"info reports {key}", key in info, out)
    check("info reports the architecture of config.json", info["architecture"] == "DeepseekV3ForCausalLM", out)
    check("info multiplies the KV bytes by the layers", info["kv_bytes_per_token"] == 3 * 1152, out)
    rc, out, _ = run("info", "--model-path", model, "--json", "--kv-cache-dtype", "fp8_e4m3",
                     "--json-model-override-args", '{"num_hidden_layers": 2}')
    check("info counts with overridden fields", json.loads(out)["kv_bytes_per_token"] == 2 * 656, out)
    fp8 = ["--kv-cache-dtype", "fp8_e4m3"]
    for flags, scales, row_bytes in [([], "none", 1152), (fp8, "per_token", 656), (["--kv-cache-dtype", "fp8_e5m2"],
                                     "none", 576), ([*fp8, "--kv-cache-scales", "per_128"], "per_128", 656)]:
        rc, out, _ = run("info", "--model-path", model, "--json", *flags)
        info = json.loads(out)
        check(f"info reports the KV records of {flags}", (info["kv_cache_scales"], info["kv_record_bytes"]) == (scales, row_bytes), out)
        _, out, _ = run("info", "--model-path", model, *flags)
        check(f"info prints the KV records of {flags}", f"records of {row_bytes} B" in out and
              ("scales " + scales in out) == (scales != "none"), out)
    expect_error("scales are refused for a format that has none", 2, ["--kv-cache-scales per_128", "bfloat16", "fp8_e4m3"], "info",
                 "--model-path", model, "--kv-cache-scales", "per_128")
    for wanted, pages in [(1, 1), (64, 1), (65, 2), (1000, 16)]:
        rc, out, _ = run("info", "--model-path", model, "--json", "--max-total-tokens", str(wanted))
        check(f"info rounds {wanted} tokens up to whole pages", rc == 0 and json.loads(out)["max_total_num_tokens"] == pages * 64, out)
    # Two contexts need more than the available memory, so the default is a quarter of the memory that the
    # weights leave.
    rc, out, err = run("info", "--model-path", model, "--json", "--device", "cpu", "--json-model-override-args",
                       '{"max_position_embeddings": 67108864, "num_hidden_layers": 60}')
    check("info of a model with a very long context succeeds", rc == 0, err)
    info = json.loads(out)
    quarter = (info["memory_bytes"] - info["weight_bytes"]) // 4 // info["kv_bytes_per_token"]
    check("info prints the cache that an engine would make", info["max_total_num_tokens"] == (quarter + 63) // 64 * 64, out)
    # An engine refuses this number of tokens in the same words, except for the amount of memory, which changes
    # between the two runs.
    too_many = ["--model-path", model, "--load-format", "dummy", "--max-total-tokens", str(10 ** 12)]
    refusal = ["max-total-tokens is 1000000000000; allowed: at most ",
               " GB of memory are free and a token needs 3456 bytes"]
    expect_error("info refuses a cache that does not fit", 1, refusal, "info", *too_many)
    expect_error("generate refuses a cache that does not fit", 1, refusal, "generate", *too_many, "--input-ids", "5")
    rc, out, _ = run("info", "--model-path", model)
    check("info prints the architecture and that it fits", rc == 0 and "DeepseekV3ForCausalLM" in out, out)


def test_expert_plan(model):
    # Without a GPU the plan is that of an H200, whatever the device.
    rc, out, err = run("info", "--model-path", model, "--expert-plan", "1,64", "4096", "--json")
    check("info --expert-plan succeeds", rc == 0, err)
    plans = json.loads(out)["expert_plans"]
    check("it has one plan for each number of tokens", [plan["tokens"] for plan in plans] == [1, 64, 4096], out)
    check("every kernel has a reason", all(kernel["reason"] for plan in plans for kernel in plan["kernels"]), out)
    check("many tokens run on the separate kernels", [kernel["op"] for kernel in plans[2]["kernels"]][:2] == ["router", "route"], out)
    check("the last kernel is down", plans[2]["kernels"][-1]["op"] == "experts_down", out)
    rc, out, _ = run("info", "--model-path", model, "--expert-plan", "4")
    check("the plan is printed below the model", rc == 0 and "experts of 4 tokens on one " in out and "experts_down" in out or
          "experts_few" in out, out)
    rc, out, _ = run("info", "--model-path", model, "--expert-plan", "1", "--kernels", "reference")
    check("the plan follows --kernels reference", "--kernels reference" in out and "experts_down      reference" in out, out)
    rc, out, _ = run("info", "--model-path", model, "--expert-plan", "1", "--disable-fusion")
    check("the plan follows --disable-fusion", rc == 0 and "--disable-fusion" in out, out)
    for value in ["0", "abc", "-1", "2000000"]:
        expect_error(f"--expert-plan {value} is refused", 2, [f"--expert-plan {value}", "[1, 1048576]"], "info", "--model-path", model,
                     f"--expert-plan={value}")
    expect_error("--expert-plan is refused for a model without experts", 2, ["--expert-plan 8", "no experts"], "info", "--model-path",
                 model, "--expert-plan", "8", "--json-model-override-args", '{"n_routed_experts": 0}')


def test_info_of_what_does_not_fit(work):
    """The model is as large as DeepSeek-V3 in bf16, which is larger than the memory of any machine that runs this test."""
    huge = work / "huge"
    huge.mkdir()
    large = {"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
             "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "n_routed_experts": 256,
             "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "vocab_size": 129280}
    (huge / "config.json").write_text(json.dumps({**CONFIG, **large}))
    base = ["info", "--model-path", huge]
    rc, out, err = run(*base, "--json", "--device", "cpu")
    info = json.loads(out)
    page_bytes = info["page_size"] * info["kv_bytes_per_token"]
    check("info of a model that is too large exits with 1", rc == 1 and info["fits"] is False, (rc, out))
    check("info says by how many bytes it is too large", info["missing_bytes"] > 10 ** 12 and info["missing_bytes"] ==
          info["weight_bytes"] + page_bytes - info["memory_bytes"], out)
    check("info names no cache capacity then", info["max_total_num_tokens"] == 0, out)
    check("the error is one line with both amounts", len(error_lines(err)) == 1 and all(
        words in err for words in ("its weights need 134", " GB are available to the CPU, which is ", " GB too little")), err)
    rc, out, err = run(*base, "--device", "cpu")
    check("the text says so too", rc == 1 and "GB too little" in out and "none, because the model does not fit" in out, out)
    rc, out, err = run(*base, "--device", "cpu", "--expert-plan", "8", "--json")
    info = json.loads(out)
    check("with --expert-plan, a model that is too large is no error", rc == 0 and not error_lines(err), (rc, err))
    check("it is said, and the plan is that of an H200", info["fits"] is False and
          info["expert_plans"][0]["card"] == "NVIDIA H200", out)
    if shutil.which("nvidia-smi"):
        return
    rc, out, _ = run(*base, "--json", "--device", "cuda")
    gpu = json.loads(out)["gpu"]
    check("without a GPU, info assumes one", rc == 1 and gpu["name"] == "NVIDIA H200" and gpu["assumed_because"], out)
    rc, out, _ = run(*base, "--device", "cuda")
    check("and says so", rc == 1 and "one NVIDIA H200 with 150.00 GB is assumed" in out, out)
    rc, out, err = run("info", "--model-path", huge, "--device", "cuda", "--json-model-override-args",
                       '{"num_hidden_layers": 4}', "--json")
    check("what fits the assumed GPU exits with 0", rc == 0 and json.loads(out)["fits"] is True, err)
    expect_error("a cache too large for the assumed GPU is refused", 1, ["a KV cache of 100000000 tokens"], *base,
                 "--device", "cuda", "--json-model-override-args", '{"num_hidden_layers": 4}', "--max-total-tokens",
                 "100000000")
    rc, out, _ = run(*base, "--json", "--device", "cuda", "--tp-size", "8")
    ranks = json.loads(out)
    check("ranks on assumed GPUs are judged by their own parts", ranks["tp_size"] == 8 and len(ranks["ranks"]) == 8 and
          ranks["missing_bytes"] < json.loads(run(*base, "--json", "--device", "cuda")[1])["missing_bytes"], out)
    expect_error("more ranks than one exchange connects are refused", 2, ["--tp-size 16: on GPUs it must be at most 8"], *base,
                 "--device", "cuda", "--tp-size", "16")
    expect_error("a GPU refuses deterministic inference", 1, ["--enable-deterministic-inference: is not supported on a GPU"],
                 *base, "--device", "cuda", "--enable-deterministic-inference")


def test_accepted_flags(model):
    rc, _, err = run("info", "--model", model, "--trust-remote-code", "--dp", "1", "--attention-backend", "fa3")
    check("flags without effect are accepted, each with a line", rc == 0 and err.count("flag accepted") == 3, err)


def test_config_file(model, work):
    file = work / "hadal.yaml"
    file.write_text(f"model-path: {model}\njson: true\nkv-cache-dtype: fp8_e5m2\n")
    rc, out, err = run("info", "--config", file)
    check("--config gives the model and its flags", rc == 0 and json.loads(out)["architecture"], err)
    in_file = json.loads(out)["kv_bytes_per_token"]
    rc, out, _ = run("info", "--config", file, "--kv-cache-dtype", "float32", "--device", "cpu")
    check("flags of the command line win", rc == 0 and json.loads(out)["kv_bytes_per_token"] > in_file, out)
    file.write_text("json: true\nkv-cash-dtype: fp8_e5m2\nthreads: many\n")
    expect_error("its faults are named with their lines, all at once", 2,
                 ["hadal.yaml:2: ", "hadal.yaml:3: threads many: must be a whole number", "--jsno"],
                 "info", model, "--config", file, "--jsno")
    rc, out, err = run("info", model)
    check("the model may come first without its flag", rc == 0 and "DeepseekV3ForCausalLM" in out, err)


def test_other_models(model, work):
    for name, change, wanted in [("llama", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "a Llama model"),
                                 ("qwen", {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "a Qwen model"),
                                 ("kimi", {"model_type": "kimi_k2"}, "a Kimi model"),
                                 ("glm", {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe"}, "a GLM model")]:
        other = work / name
        other.mkdir()
        (other / "config.json").write_text(json.dumps({**CONFIG, **change}))
        expect_error(f"{name} is named, with what runs it", 1, [wanted, "SGLang and vLLM run this model"], "info", other)
    folder = work / "gguf"
    folder.mkdir()
    (folder / "r1.gguf").write_bytes(b"GGUF")
    expect_error("a folder of GGUF files is named, with what runs it", 1, ["r1.gguf", "llama-server"], "serve", folder)
    if HAS_TOKENIZER:
        expect_error("a path of --chat-template names the format that is built in", 2,
                     ["--chat-template ./my.jinja", "the model's own, v3.1"], "chat", TINY, "--chat-template", "./my.jinja")


def test_closed_pipe(model):
    process = subprocess.Popen([BIN, "info", "--model-path", str(model)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, preexec_fn=lambda: time.sleep(0.3))
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=60)
    check("a closed pipe causes no error line", err == b"", err)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([BIN, "info", "--model-path", str(model)], stdout=full, stderr=subprocess.PIPE)
        check("a full disk is an error", done.returncode == 1 and b"standard output" in done.stderr, done.stderr)


def test_tokenizer(work):
    expect_error("eval names --max-new-tokens", 2, ["--max-new-tokens 99999: must be in [0, "], "eval", "--model-path", TINY, "--data",
                 TINY / "eval/addition.jsonl", "--limit", "1", "--max-new-tokens", "99999")
    # The chat says what is wrong with each line that changes a setting, and goes on.
    lines = "/set max-new-tokens 9999\nhi\n/set stop-token-ids 99999\n/set temperature 1e31\n/set temperature -1\n"
    rc, _, err = run("chat", "--model-path", TINY, stdin=lines.encode())
    check("chat names the flags", rc == 1 and all(line in err for line in (
        "error: --max-new-tokens 9999: must be in [0, ", "error: --stop-token-ids: contains the token 99999; must be in [0, 4095]",
        "error: --temperature 1e31: must be in [0, 1e+30]", "error: --temperature -1: must be in [0, 1e+30]")), err)
    text = "Once upon a time, 12345 naïve cats 东西 🙂\n"
    rc, out, err = run("tokenize", "--model-path", TINY, "--text", text)
    check("tokenize succeeds", rc == 0, err)
    ids = json.loads(out)
    rc, plain, _ = run("tokenize", "--model-path", TINY, "--no-add-special-tokens", stdin=text.encode())
    check("tokenize adds the first special token", ids[1:] == json.loads(plain), out)
    rc, back, _ = run("detokenize", "--model-path", TINY, stdin=plain.encode())
    check("detokenize returns the text", back == text + "\n", back)
    rc, back, _ = run("detokenize", "--model-path", TINY, "--input-ids", *ids, "--skip-special-tokens")
    check("detokenize leaves special tokens out", back == text + "\n", back)
    only = work / "only_tokenizer"
    only.mkdir()
    shutil.copy(TINY / "tokenizer.json", only)
    rc, out, err = run("tokenize", "--model-path", only, "--text", "hi", "--no-add-special-tokens")
    check("tokenize needs no file but tokenizer.json", rc == 0 and json.loads(out), err)
    expect_error("detokenize refuses an id outside the vocabulary", 2, ["--input-ids: contains the token 99999999", "vocabulary"], "detokenize", "--model-path", TINY, "--input-ids", "99999999")
    expect_error("tokenize names a tokenizer.json that is missing", 1, ["tokenizer.json"], "tokenize", "--model-path", work, "--text", "x")


def claims(work, model):
    test_help()
    test_usage_errors(model)
    test_errors_name_flags(model)
    test_missing_files(model, work)
    test_file_errors(model, work)
    test_info(model)
    test_expert_plan(model)
    test_info_of_what_does_not_fit(work)
    test_accepted_flags(model)
    test_config_file(model, work)
    test_other_models(model, work)
    test_closed_pipe(model)
    if HAS_TOKENIZER:
        test_tokenizer(work)


if __name__ == "__main__":
    sys.exit(run_tests(claims))
