#!/usr/bin/env python3
"""Drives every command of the hadal binary, errors included. Needs only the standard library.

HADAL_BINARY names the binary (default build/cpu-release/hadal). Commands that need weights run on models/hadal-tiny
when it has them, and always on random weights of a config that this test writes.
"""

import json
import os
import pathlib
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = os.environ.get("HADAL_BINARY", str(ROOT / "build/cpu-release/hadal"))
TINY = ROOT / "models/hadal-tiny"
HAS_WEIGHTS = any(TINY.glob("*.safetensors"))
HAS_TOKENIZER = (TINY / "tokenizer.json").exists()

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 256,
    "intermediate_size": 256, "moe_intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 16, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "vocab_size": 4096, "max_position_embeddings": 512, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}

passed = failed = 0


def check(name, condition, detail=""):
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print(f"FAILED {name}: {detail}")


def run(*words, stdin=b"", timeout=120, env=None):
    done = subprocess.run([BIN, *map(str, words)], input=stdin, capture_output=True, timeout=timeout,
                          env={**os.environ, **(env or {})})
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8", "replace")


def error_lines(err):
    return [line for line in err.splitlines() if "error:" in line]


def expect_error(name, code, wanted, *words, stdin=b"", env=None):
    rc, out, err = run(*words, stdin=stdin, env=env)
    lines = error_lines(err)
    check(f"{name}: exit code", rc == code, f"{rc} instead of {code}: {err}")
    check(f"{name}: one line", len(lines) == 1, err)
    check(f"{name}: message", all(w in err for w in wanted), err)


def read_logits(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    count = (len(data) - 8 - size) // 4
    return header["logits"]["shape"], struct.unpack(f"<{count}f", data[8 + size:])


def test_help():
    rc, out, _ = run("--version")
    check("version", rc == 0 and out.startswith("hadal "), out)
    rc, out, _ = run("--help")
    check("help", rc == 0 and "generate" in out and "serve" in out, out)
    for command in ["generate", "chat", "serve", "logits", "tokenize", "detokenize", "info", "bench one-batch", "eval"]:
        rc, out, _ = run(*command.split(), "--help")
        check(f"help of {command}", rc == 0 and "--model-path" in out, out)
        check(f"help {command} is the same", run("help", *command.split()) == (0, out, ""))
    for words in (["tune", "--help"], ["tune", "help"], ["help", "tune"]):
        rc, out, _ = run(*words)
        check(f"{words}: tune's commands alone", rc == 0 and "tune moe" in out and "generate" not in out, out)
    expect_error("help of half a command", 2, ["'tune fp8'", "fp8-gemm or moe"], "help", "tune", "fp8")
    expect_error("help of an unknown command", 2, ["'nonsense'", "--help"], "help", "nonsense")


def test_usage_errors(model):
    expect_error("no command", 2, ["--help"])
    expect_error("a list in a message is lines", 1, ["unexpected):\n  missing: model.layers.", "\n  missing: model."],
                 "generate", "--model-path", TINY, "--input-ids", "5",
                 "--json-model-override-args", '{"num_hidden_layers": 9}')
    expect_error("a break in a value is none", 2, ["a\\nb"], "generate", "--model-path", model, "--dtype", "a\nb")
    expect_error("unknown command", 2, ["generate"], "genrate")
    for flag in ["--api-key", "--admin-api-key"]:  # an unset variable of a start script
        expect_error(f"empty {flag}", 2, [flag, "empty"], "serve", "--model-path", model, flag, "")
    expect_error("unknown flag", 2, ["--temperature"], "generate", "--temprature", "1")
    expect_error("no model", 2, ["--model-path"], "generate", "--prompt", "x")
    expect_error("-h is no value", 2, ["--prompt", "needs a value"], "generate", "--prompt", "-h")
    expect_error("empty stop", 2, ["--stop"], "generate", "--model-path", model, "--input-ids", "5", "--stop", "")
    expect_error("context of one", 2, ["--context-length 1", "[2,"], "generate", "--model-path", model,
                 "--input-ids", "5", "--context-length", "1")
    expect_error("several devices", 2, ["one device"], "generate", "--model", model, "--tp", "8")
    expect_error("nan", 2, ["--temperature nan"], "generate", "--model", model, "--temperature", "nan")
    expect_error("top-p", 2, ["--top-p 0"], "generate", "--model", model, "--top-p", "0")
    expect_error("bad ids", 2, ["--input-ids"], "generate", "--model", model, "--load-format", "dummy",
                 "--input-ids", "1,x")
    expect_error("ids out of range", 2, ["4096", "4095"], "generate", "--model", model, "--load-format", "dummy",
                 "--input-ids", "1,4096")
    expect_error("prompt too long", 2, ["context"], "generate", "--model", model, "--load-format", "dummy",
                 "--input-ids", ",".join(["5"] * 512))
    expect_error("too many new tokens", 2, ["max_new_tokens"], "generate", "--model", model, "--load-format",
                 "dummy", "--input-ids", "5", "--max-new-tokens", "600")
    expect_error("no device", 1, ["--device cuda"], "generate", "--model", model, "--device", "cuda",
                 "--input-ids", "1")
    dummy = ["--model", model, "--load-format", "dummy"]
    expect_error("empty id", 2, ["--input-ids", "item 2 is empty"], "generate", *dummy, "--input-ids", "1,,2")
    expect_error("empty last id", 2, ["--input-ids", "item 3 is empty"], "generate", *dummy, "--input-ids", "1,2,")
    expect_error("chunks of nothing", 2, ["--chunked-prefill-size 0", "-1 or in [1,"], "generate", *dummy,
                 "--input-ids", "5", "--chunked-prefill-size", "0")
    expect_error("flag that needs --json", 2, ["--top-logprobs needs --json"], "generate", *dummy, "--input-ids",
                 "5", "--top-logprobs", "2")
    expect_error("seed range", 2, ["[0, 9223372036854775807]"], "generate", *dummy, "--seed", "9223372036854775808")
    expect_error("infinite", 2, ["must be a finite number"], "generate", *dummy, "--temperature", "inf")
    expect_error("nearest value", 2, ["did you mean fp8_e4m3?"], "generate", *dummy, "--kv-cache-dtype", "fp8")
    expect_error("another command's flag", 2, ["does not apply to `hadal info`"], "info", *dummy, "--stop", "x")
    expect_error("empty value", 2, ["--log-level '': must be one of"], "info", *dummy, "--log-level=")
    rc, _, err = run("info", *dummy, "--log-level", "\x1b[31m\nred")
    check("control bytes are written out", rc == 2 and "\\x1b[31m\\nred" in err and "\x1b" not in err, repr(err))
    for name, value, wanted in [("JSON", "{", "JSON"), ("field", '{"num_layer": 2}', "unknown field"),
                                ("value", '{"num_hidden_layers": -1}', "num_hidden_layers")]:
        expect_error(f"override with a bad {name}", 2, ["--json-model-override-args", wanted], "info", *dummy,
                     "--json-model-override-args", value)
    expect_error("eval without its file", 1, ["eval gsm8k", "F: no such file"], "eval", "gsm8k", "--data", "F",
                 "--model-path", model)
    expect_error("no directory", 1, ["/no/such/dir"], "info", "--model-path", "/no/such/dir")
    with tempfile.TemporaryDirectory() as home:
        expect_error("hub id that is not here", 1, ["deepseek-ai/DeepSeek-V3", "download"], "info", "--model-path",
                     "deepseek-ai/DeepSeek-V3", env={"HF_HOME": home})


def test_file_errors(model, work):
    expect_error("no weights", 1, ["safetensors"], "generate", "--model", model, "--input-ids", "1")
    for name, change, wanted in [
        ("architecture", {"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ("gate", {"topk_method": "best_of"}, "best_of"),
        ("rope", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "dynamic"),
        ("quantisation", {"quantization_config": {"quant_method": "awq"}}, "awq"),
    ]:
        bad = work / f"bad_{name}"
        bad.mkdir()
        (bad / "config.json").write_text(json.dumps({**CONFIG, **change}))
        expect_error(f"unknown {name}", 1, [wanted], "info", "--model-path", bad)
    broken = work / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    expect_error("broken config", 1, ["config.json"], "info", "--model-path", broken)
    (broken / "config.json").write_text(json.dumps(CONFIG))
    (broken / "model.safetensors").write_bytes(b"\xff" * 64)
    expect_error("broken weights", 1, ["model.safetensors"], "generate", "--model", broken, "--input-ids", "1")
    (broken / "generation_config.json").write_text('{"top_p": 3}')
    expect_error("broken generation config", 1, ["top_p"], "generate", "--model", broken, "--input-ids", "1")
    (broken / "tokenizer.json").write_text("[]")
    expect_error("broken tokenizer", 1, ["tokenizer.json"], "tokenize", "--model", broken, "--text", "x")


def test_info(model):
    rc, out, err = run("info", "--model-path", model, "--json")
    check("info", rc == 0, err)
    info = json.loads(out)
    for key in ["architecture", "num_parameters", "weight_bytes", "kv_bytes_per_token", "max_total_num_tokens"]:
        check(f"info {key}", key in info, out)
    check("info architecture", info["architecture"] == "DeepseekV3ForCausalLM", out)
    check("info KV bytes", info["kv_bytes_per_token"] == 3 * 1152, out)
    rc, out, _ = run("info", "--model-path", model, "--json", "--kv-cache-dtype", "fp8_e4m3",
                     "--json-model-override-args", '{"num_hidden_layers": 2}')
    check("info override", json.loads(out)["kv_bytes_per_token"] == 2 * 656, out)
    fp8 = ["--kv-cache-dtype", "fp8_e4m3"]
    for flags, scales, row_bytes in [([], "none", 1152), (fp8, "per_token", 656), (["--kv-cache-dtype", "fp8_e5m2"],
                                     "none", 576), ([*fp8, "--kv-cache-scales", "per_128"], "per_128", 656)]:
        rc, out, _ = run("info", "--model-path", model, "--json", *flags)
        info = json.loads(out)
        check(f"info KV records {flags}", (info["kv_cache_scales"], info["kv_record_bytes"]) == (scales, row_bytes), out)
        _, out, _ = run("info", "--model-path", model, *flags)
        check(f"info text KV records {flags}", f"records of {row_bytes} B" in out and
              ("scales " + scales in out) == (scales != "none"), out)
    expect_error("scales of a format without", 2, ["--kv-cache-scales per_128", "bfloat16", "fp8_e4m3"], "info",
                 "--model-path", model, "--kv-cache-scales", "per_128")
    for wanted, pages in [(1, 1), (64, 1), (65, 2), (1000, 16)]:
        rc, out, _ = run("info", "--model-path", model, "--json", "--max-total-tokens", str(wanted))
        check(f"info of {wanted} tokens", rc == 0 and json.loads(out)["max_total_num_tokens"] == pages * 64, out)
    # As an engine refuses them, in the same words; memory changes between the two.
    too_many = ["--model-path", model, "--load-format", "dummy", "--max-total-tokens", str(10 ** 12)]
    refusal = ["max-total-tokens is 1000000000000; allowed: at most ", " GB of memory and 3456 bytes a token"]
    expect_error("info of more tokens than fit", 1, refusal, "info", *too_many)
    expect_error("generate with more tokens than fit", 1, refusal, "generate", *too_many, "--input-ids", "5")
    rc, out, _ = run("info", "--model-path", model)
    check("info text", rc == 0 and "DeepseekV3ForCausalLM" in out, out)


def test_dummy_generate(model):
    base = ["generate", "--model-path", model, "--load-format", "dummy", "--log-level", "warning"]
    greedy = [*base, "--input-ids", "5,6,7", "--json", "--temperature", "0", "--ignore-eos"]
    rc, out, err = run(*greedy, "--max-new-tokens", "8")
    check("generate", rc == 0, err)
    first = json.loads(out)
    check("generate keys", set(first) >= {"text", "output_ids", "finish_reason", "prompt_tokens",
                                          "completion_tokens", "timings"}, out)
    check("generate timings", set(first["timings"]) == {"load_s", "prefill_s", "decode_s", "tokens_per_s"}, out)
    check("generate counts", first["prompt_tokens"] == 3 and first["completion_tokens"] == 8
          and len(first["output_ids"]) == 8, out)
    check("generate length", first["finish_reason"] == {"type": "length", "length": 8}, out)
    check("no tokenizer, no text", first["text"] == "", out)
    ids = first["output_ids"]

    words = [*base, "--input-ids", "5", "--temperature", "0", "--log-level", "info"]
    rc, _, err = run(*words, "--ignore-eos", "--max-new-tokens", "4")
    check("the summary says what cut the answer", "stopped at --max-new-tokens 4" in err, err)
    rc, _, err = run(*words, "--max-new-tokens", "4", "--logit-bias", '{"1": 100}')
    check("an answer that ended is not said to be cut", rc == 0 and "stopped" not in err and "tok/s" in err, err)
    rc, _, err = run(*words, "--ignore-eos", "--context-length", "20")
    check("the summary says when the context cut it", "all that the context has room for" in err, err)

    rc, out, _ = run(*base, "--json", "--temperature", "0", "--ignore-eos", "--max-new-tokens", "8",
                     "--input_ids=[5, 6, 7]", "--threads", "1", "--chunked-prefill-size", "1",
                     "--random-seed", "42")
    check("same ids in chunks on one thread", json.loads(out)["output_ids"] == ids, out)
    rc, out, _ = run(*greedy, "--max-new-tokens", "8", "--stop-token-ids", str(ids[2]))
    stopped = json.loads(out)
    check("stop token", stopped["finish_reason"] == {"type": "stop", "matched": ids[2]}
          and stopped["output_ids"] == ids[:ids.index(ids[2]) + 1], out)
    rc, out, _ = run(*greedy, "--max-new-tokens", "3", "--logit-bias", '{"9": 100}')
    check("logit bias", json.loads(out)["output_ids"] == [9, 9, 9], out)
    rc, out, _ = run(*greedy, "--max-new-tokens", "2", "--top-logprobs", "3", "--logprob-start-len", "0")
    scored = json.loads(out)
    check("logprobs", [t[1] for t in scored["output_token_logprobs"]] == ids[:2]
          and all(len(top) == 3 for top in scored["output_top_logprobs"])
          and [t[1] for t in scored["input_token_logprobs"]] == [6, 7], out)
    check("best logprob is the greedy token",
          all(t[1] == top[0][1] for t, top in zip(scored["output_token_logprobs"], scored["output_top_logprobs"])), out)

    sampled = [*base, "--input-ids", "5", "--json", "--max-new-tokens", "6", "--ignore-eos"]
    rc, out, _ = run(*sampled, "--seed", "7", "--n", "3")
    choices = [c["output_ids"] for c in json.loads(out)["choices"]]
    check("n choices", len(choices) == 3 and choices[0] != choices[1], out)
    rc, out, _ = run(*sampled, "--seed", "8")
    check("choice i uses seed + i", json.loads(out)["output_ids"] == choices[1], out)
    rc, out, err = run(*base, "--prompt", "x")
    check("a prompt needs a tokenizer", rc == 1 and "--input-ids" in err, err)
    for flags in [["--dtype", "float32"], ["--quantization", "fp8"], ["--kv-cache-dtype", "fp8_e4m3"],
                  ["--kv-cache-dtype", "fp8_e4m3", "--kv-cache-scales", "per_128"],
                  ["--kv-cache-dtype", "fp8_e5m2"], ["--dtype", "float16"], ["--kernels", "reference"]]:
        rc, out, err = run(*greedy, "--max-new-tokens", "2", *flags)
        check(f"generate {' '.join(flags)}", rc == 0 and len(json.loads(out)["output_ids"]) == 2, err)


def test_class_two_flags(model):
    rc, _, err = run("info", "--model", model, "--trust-remote-code", "--tp", "1", "--attention-backend", "fa3")
    check("accepted flags", rc == 0 and err.count("flag accepted") == 3, err)


def test_logits(model, work):
    base = ["logits", "--model-path", model, "--load-format", "dummy", "--dtype", "float32", "--log-level", "warning",
            "--input-ids", "5,6,7,8,9"]
    results = {}
    for name, flags in [("whole", []), ("chunked", ["--chunk", "2"]), ("decode", ["--mode", "decode"]),
                        ("mixed", ["--decode-from", "3"])]:
        path = work / f"{name}.safetensors"
        rc, _, err = run(*base, "--output", path, *flags)
        check(f"logits {name}", rc == 0, err)
        shape, results[name] = read_logits(path)
        check(f"logits {name} shape", shape == [5, 4096], shape)
    check("logits do not depend on chunks", results["whole"] == results["chunked"])
    norm = sum(x * x for x in results["whole"]) ** 0.5
    for name in ["decode", "mixed"]:
        error = sum((x - y) ** 2 for x, y in zip(results["whole"], results[name])) ** 0.5 / norm
        check(f"logits {name} agree", error < 1e-4, error)
    check("no temporary files", not list(work.glob("*.tmp")))
    expect_error("logits into a directory", 1, ["directory"], *base, "--output", work)
    _, _, err = run(*base, "--output", work, "--log-level", "info")
    check("logits into a directory: before loading", "model loaded" not in err, err)
    expect_error("logits: decode-from past the prompt", 2, ["--decode-from 9", "allowed: 0 to 5"], *base, "--output",
                 work / "unused.safetensors", "--decode-from", "9")
    expect_error("logits into nowhere", 1, ["/no/such"], *base, "--output", "/no/such/x.safetensors")
    if os.path.exists("/dev/full"):
        rc, _, err = run("generate", "--help")
        full = subprocess.run([BIN, *base, "--output", "/dev/full/x"], capture_output=True)
        check("logits: not a directory", full.returncode == 1, full.stderr)


def test_bench(model, work):
    rows_path = work / "rows.jsonl"
    rc, out, err = run("bench", "one-batch", "--model-path", model, "--load-format", "dummy", "--batch-size", "1", "8",
                       "--input", "16", "--output", "6", "--torch-compile-max-bs", "1", "--cuda-graph-max-bs", "1",
                       "--disable-cuda-graph", "--result-filename", rows_path, "--run-name", "here", timeout=300)
    check("bench", rc == 0 and "share" in out, err)
    rows = [json.loads(line) for line in rows_path.read_text().splitlines()]
    keys = {"run_name", "batch_size", "input_len", "output_len", "prefill_latency", "prefill_throughput",
            "median_decode_latency", "median_decode_throughput", "total_latency", "overall_throughput",
            "bandwidth_gb_s", "bandwidth_ceiling_gb_s", "share_of_ceiling", "distinct_experts"}
    check("bench rows", [r["batch_size"] for r in rows] == [1, 8] and all(keys <= set(r) for r in rows), rows)
    check("bench experts", rows[0]["distinct_experts"] == 4 and 8 <= rows[1]["distinct_experts"] <= 16, rows)
    expect_error("bench profile", 2, ["--profile"], "bench", "one-batch", "--model", model, "--profile")
    expect_error("bench too long", 2, ["max_position_embeddings"], "bench", "one-batch", "--model", model,
                 "--load-format", "dummy", "--input-len", "600")


def test_tune(model, work):
    expect_error("tune what", 2, ["fp8-gemm or moe"], "tune")
    expect_error("tune nothing", 2, ["--n is missing", "--model-path"], "tune", "fp8-gemm")
    expect_error("tune half a shape", 2, ["--k is missing"], "tune", "fp8-gemm", "--n", "512")
    expect_error("tune experts of no number", 2, ["--experts is missing"], "tune", "moe", "--n", "256", "--k", "7168",
                 "--top-k", "8")
    expect_error("tune more a token than there are", 2, ["--top-k 8", "--experts, which is 4"], "tune", "moe",
                 "--experts", "4", "--n", "256", "--k", "7168", "--top-k", "8")
    expect_error("tune model and shape", 2, ["--n", "--model-path says it"], "tune", "fp8-gemm", "--model-path", model,
                 "--n", "512")
    expect_error("tune split of no model", 2, ["--tp-size needs --model-path"], "tune", "fp8-gemm", "--n", "512",
                 "--k", "512", "--tp", "2")
    expect_error("tune uneven split", 2, ["--tp-size 3", "num_attention_heads, which is 4"], "tune", "fp8-gemm",
                 "--model-path", model, "--tp-size", "3", "--dry-run")
    expect_error("tune batch of nothing", 2, ["--m 0", "[1,"], "tune", "fp8-gemm", "--n", "512", "--k", "512", "--m", "0",
                 "--dry-run")
    expect_error("tune flag of moe", 2, ["--experts"], "tune", "fp8-gemm", "--n", "512", "--k", "512", "--experts", "4")
    expect_error("tune into nowhere", 2, ["--output-dir /proc/hadal"], "tune", "fp8-gemm", "--n", "512", "--k", "512",
                 "--output-dir", "/proc/hadal")
    expect_error("tune into a file", 2, ["--output-dir"], "tune", "fp8-gemm", "--n", "512", "--k", "512",
                 "--output-dir", model / "config.json")
    expect_error("tune without a GPU", 1, ["tuning needs a GPU: "], "tune", "moe", "--model-path", model, "--output-dir",
                 work / "configs")
    check("tune without a GPU makes no directory", not (work / "configs").exists())

    expect_error("tune sizes of no weights", 2, ["--experts 512 --n 4194304 --k 4194304", "GiB; must be at most 64"],
                 "tune", "moe", "--experts", "512", "--n", "4194304", "--k", "4194304", "--top-k", "2", "--dry-run")
    expect_error("tune size of no matrix", 2, ["--n 4194305", "4194304]"], "tune", "fp8-gemm", "--n", "4194305", "--k",
                 "128", "--dry-run")
    expect_error("tune too many experts", 2, ["--experts 513", "512]"], "tune", "moe", "--n", "256", "--k", "7168",
                 "--experts", "513", "--top-k", "8", "--dry-run")
    rc, out, err = run("tune", "moe", "--experts", "512", "--n", "1400", "--k", "16384", "--top-k", "8", "--m", "65536",
                       "1", "65536", "--dry-run")
    rows = [line.split() for line in out.splitlines()]
    check("tune dry run: whole blocks, each batch once", rc == 0 and [row[2:9] for row in rows[1:3]] == [
        ["fp8", "512", "of", "2816", "x", "16384", m] for m in ("65536", "1")] and len(rows) == 6, out + err)
    rc, out, err = run("tune", "fp8-gemm", "--n", "2112", "--k", "7168", "--m", "1", "64,512", "--dry-run")
    check("tune dry run", rc == 0, err)
    for flag, shown in (("fp8", "fp8 "), ("w8a8_fp8", "fp8 rows"), ("w8a8_int8", "int8 rows"), ("blockwise_int8", "int8 "),
                        ("bf16", "bf16 ")):
        for what in (("fp8-gemm",), ("moe", "--experts", "8", "--top-k", "2")):
            rc, out, err = run("tune", *what, "--n", "512", "--k", "1024", "--m", "16", "--weight-type", flag, "--dry-run")
            check(f"tune dry run of {flag}: {what[0]}", rc == 0 and f" {shown} " in out.splitlines()[1], out + err)
    check("tune dry run: how long", "expected to take" in out, out)
    expect_error("tune dry run into a file", 2, ["--output-dir", "is not a directory"], "tune", "fp8-gemm", "--n", "512",
                 "--k", "512", "--dry-run", "--output-dir", model / "config.json")
    rc, out, err = run("tune", "fp8-gemm", "--n", "512", "--k", "512", "--m", "1", "--dry-run", "--output-dir",
                       work / "not" / "there")
    check("tune dry run makes no directory", rc == 0 and not (work / "not").exists(), err)
    rc, out, err = run("tune", "fp8-gemm", "--n", "2112", "--k", "7168", "--m", "1", "64,512", "--dry-run")
    rows = [line.split(None, 6) for line in out.splitlines()]
    check("tune dry run: rows", len(rows) == 5 and rows[0][0] == "product", out)
    chosen = {line.split()[5]: line for line in out.splitlines()[1:4]}
    check("tune dry run: choices", all(text in chosen.get(m, "") for m, text in [
        ("1", "thin 8x16"), ("64", "skinny 64x64 splits 5 stages 6"), ("512", "tiled 128x64 stages 7")]), out)
    rc, out, err = run("tune", "fp8-gemm", "--model-path", model, "--quantization", "fp8", "--m", "16", "--dry-run")
    check("tune dry run of a model", rc == 0 and all(name in out for name in [
        "qkv_a", "q_b", "kv_b", "o_proj", "gate_up", "down", "router", "lm_head", "choices for 8 products at 1 batch size,"]),
          out + err)
    rc, out, err = run("tune", "moe", "--model-path", model, "--tp", "2", "--ep", "2", "--m", "16", "--dry-run")
    check("tune dry run of experts", rc == 0 and "9 of 256 x 256" in out and "9 of 256 x 128" in out, out + err)
    presets = [pathlib.Path(BIN).with_name("tune_presets"), "--presets", "v3", "v3", "--tp-size", "8", "--output-dir", work / "not"]
    done = subprocess.run([*presets, "--m", "16", "16", "--dry-run"], capture_output=True, text=True, check=False)
    check("tune_presets: each once", done.returncode == 0 and " for 10 products at 1 batch size," in done.stdout, done)
    done = subprocess.run([*presets, "--share", "11/11"], capture_output=True, text=True, check=False)
    check("tune_presets: share of nothing", done.returncode == 2 and "N must be at most 10" in done.stderr, done)
    done = subprocess.run(presets, capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    check("tune_presets without a GPU makes no directory", done.returncode == 1 and not (work / "not").exists(), done)
    check("tune dry run writes nothing", not any(pathlib.Path(".").glob("N=*.json")))

    expect_error("kernel configs nowhere", 2, ["--kernel-config-dir /absent: is not a directory"], "generate",
                 "--model", model, "--kernel-config-dir", "/absent", "--input-ids", "5")
    expect_error("kernel configs of no name", 2, ["--kernel-config-dir '': is not a directory"], "generate",
                 "--model", model, "--kernel-config-dir", "", "--input-ids", "5")
    rc, out, err = run("generate", "--model", model, "--load-format", "dummy", "--kernel-config-dir", work, "--device",
                       "cpu", "--disable-cuda-graph", "--input-ids", "5", "--max-new-tokens", "1")
    lines = [line for line in err.splitlines() if "flags not used" in line]
    check("flags of GPUs on a CPU: one line", rc == 0 and len(lines) == 1 and all(
        word in lines[0] for word in ("--kernel-config-dir", "--disable-cuda-graph", "they are of GPUs")), err)
    rc, out, err = run("generate", "--model", model, "--load-format", "dummy", "--input-ids", "5", "--max-new-tokens",
                       "1")
    check("no flags of GPUs: no line", rc == 0 and "flags not used" not in err, err)


def test_interrupt(model):
    words = ["generate", "--model-path", model, "--load-format", "dummy", "--input-ids", "5", "--max-new-tokens", "500",
             "--ignore-eos", "--json", "--kernels", "reference", "--log-level", "info", "--json-model-override-args",
             '{"num_hidden_layers": 12, "hidden_size": 1024}']
    process = subprocess.Popen([BIN, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    seen = b""
    while b"model loaded" not in seen:
        piece = process.stderr.read1(4096)
        if not piece:
            break
        seen += piece
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    check("Ctrl-C exit code", process.returncode == 130, f"{process.returncode} {err}")
    result = json.loads(out) if out.strip() else {}
    check("Ctrl-C keeps what was made", result.get("finish_reason", {}).get("type") == "abort", out)

    # In the middle of a prompt: it ends after the chunk in hand, before any token.
    words = ["generate", "--model-path", model, "--load-format", "dummy", "--input-ids", ",".join(["5"] * 20000),
             "--max-new-tokens", "2", "--json", "--kernels", "reference", "--chunked-prefill-size", "16",
             "--json-model-override-args", '{"max_position_embeddings": 32768}']
    process = subprocess.Popen([BIN, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    seen = b""
    while b"engine ready" not in seen:
        piece = process.stderr.read1(4096)
        if not piece:
            break
        seen += piece
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    check("Ctrl-C in the prompt: exit code", process.returncode == 130, f"{process.returncode} {err}")
    result = json.loads(out) if out.strip() else {}
    check("Ctrl-C in the prompt: no tokens", result.get("finish_reason", {}).get("type") == "abort"
          and result["output_ids"] == [], out)


def test_closed_pipe(model):
    process = subprocess.Popen([BIN, "info", "--model-path", str(model)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, preexec_fn=lambda: time.sleep(0.3))
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=60)
    check("closed pipe is quiet", err == b"", err)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([BIN, "info", "--model-path", str(model)], stdout=full, stderr=subprocess.PIPE)
        check("full disk", done.returncode == 1 and b"standard output" in done.stderr, done.stderr)


def test_tokenizer(work):
    text = "Once upon a time, 12345 naïve cats 东西 🙂\n"
    rc, out, err = run("tokenize", "--model-path", TINY, "--text", text)
    check("tokenize", rc == 0, err)
    ids = json.loads(out)
    rc, plain, _ = run("tokenize", "--model-path", TINY, "--no-add-special-tokens", stdin=text.encode())
    check("tokenize adds bos", ids[1:] == json.loads(plain), out)
    rc, back, _ = run("detokenize", "--model-path", TINY, stdin=plain.encode())
    check("detokenize", back == text + "\n", back)
    rc, back, _ = run("detokenize", "--model-path", TINY, "--input-ids", *ids, "--skip-special-tokens")
    check("detokenize skips special tokens", back == text + "\n", back)
    only = work / "only_tokenizer"
    only.mkdir()
    shutil.copy(TINY / "tokenizer.json", only)
    rc, out, err = run("tokenize", "--model-path", only, "--text", "hi", "--no-add-special-tokens")
    check("tokenize needs tokenizer.json alone", rc == 0 and json.loads(out), err)
    expect_error("detokenize range", 2, ["vocabulary"], "detokenize", "--model-path", TINY, "--input-ids", "99999999")
    expect_error("tokenize without a tokenizer", 1, ["tokenizer.json"], "tokenize", "--model-path", work, "--text", "x")


def make_text_model(work):
    """The bundled model's tokenizer with random weights, for the paths that need text."""
    model = work / "text_model"
    model.mkdir()
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(TINY / name, model)
    (model / "config.json").write_text(json.dumps(CONFIG))
    return model


def test_text(work, model, flags):
    name = model.name
    base = ["generate", "--model-path", model, *flags, "--log-level", "warning"]
    greedy = ["--temperature", "0", "--max-new-tokens", "12"]
    rc, out, err = run(*base, "--prompt", "Once upon a time", "--json", *greedy)
    check(f"{name}: generate from text", rc == 0, err)
    result = json.loads(out)
    rc, streamed, _ = run(*base, *greedy, stdin=b"Once upon a time")
    check(f"{name}: streamed text is the same", streamed == result["text"] + "\n", (streamed, result["text"]))
    stop = result["text"][3:6]
    rc, out, _ = run(*base, "--prompt", "Once upon a time", "--json", *greedy, "--stop", stop)
    stopped = json.loads(out)
    check(f"{name}: stop string", stopped["finish_reason"] == {"type": "stop", "matched": stop}
          and stopped["text"] == result["text"][:result["text"].index(stop)], out)
    rc, out, err = run(*base, "--chat", "--system", "Be kind.", "--thinking", "--prompt", "hi", "--json", *greedy)
    check(f"{name}: generate --chat", rc == 0 and json.loads(out)["prompt_tokens"] > 4, err)
    rc, out, err = run(*base, "--chat", "--thinking", "--prompt", "hi", "--chat-template", "v3.1", *greedy)
    check(f"{name}: generate opens the reasoning", rc == 0 and out.startswith("<think>"), (out, err))
    rc, out, err = run(*base, "--chat", "--prompt", "hi", "--chat-template", "v3.1", *greedy)
    check(f"{name}: generate without reasoning", rc == 0 and "<think>" not in out, (out, err))
    expect_error(f"{name}: chat answers are longer", 2, ["[0, 1024]"], *base, "--chat", "--prompt", "hi",
                 "--min-new-tokens", "1025")
    expect_error(f"{name}: unknown chat format", 2, ["v2.5", "r1", "v3.1"], *base, "--chat", "--prompt", "x",
                 "--chat-template", "v9")
    rc, out, err = run("chat", "--model-path", model, *flags, "--max-new-tokens", "4", "--temperature", "0",
                       "--log-level", "warning", stdin=b"hello\n/think\nwhy?\n/reset\n/nothink\n/help\nhello\n/exit\nx\n")
    check(f"{name}: chat", rc == 0 and "<think>" in out, (out, err))
    answers = out.splitlines()
    check(f"{name}: chat forgets on /reset", answers[0] == answers[-1], out)
    data = work / f"{name}.jsonl"
    data.write_text("\n".join(json.dumps(q) for q in [
        {"task": "a", "messages": [{"role": "user", "content": "1+1"}], "thinking": True, "answer": "2"},
        {"task": "b", "messages": [{"role": "user", "content": "{}"}], "thinking": False, "answer": "{}",
         "compare": "json"}]))
    answers_path = work / f"{name}_answers.jsonl"
    rc, out, err = run("eval", "--model-path", model, *flags, "--data", data, "--json", "--max-new-tokens", "4",
                       "--answers", answers_path, "--log-level", "warning")
    scores = json.loads(out) if rc == 0 else {}
    check(f"{name}: eval", rc == 0 and scores["all"]["total"] == 2 and set(scores["tasks"]) == {"a", "b"}, err)
    check(f"{name}: eval answers", len(answers_path.read_text().splitlines()) == 2)
    rc, out, _ = run("eval", "--model-path", model, *flags, "--data", data, "--max-new-tokens", "2", "--limit", "1")
    check(f"{name}: eval table", rc == 0 and "correct" in out, out)
    (work / "bad.jsonl").write_text('{"task": 1}\n')
    expect_error(f"{name}: eval bad data", 1, ["bad.jsonl:1"], "eval", "--model-path", model, "--data",
                 work / "bad.jsonl")


def test_chat_terminal(model, flags):
    """On a terminal thinking is dimmed, Ctrl-C stops an answer, and a second one at the prompt leaves."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(BIN, [BIN, "chat", "--model-path", str(model), *flags, "--thinking", "--max-new-tokens", "300",
                       "--ignore-eos", "--log-level", "warning", "--kernels", "reference"])

    def read_until(wanted, limit=60):
        seen = b""
        end = time.time() + limit
        while wanted not in seen and time.time() < end:
            if select.select([fd], [], [], 0.2)[0]:
                try:
                    seen += os.read(fd, 4096)
                except OSError:
                    break
        return seen

    read_until(b"> ")
    os.write(fd, b"hello\n")
    seen = read_until(b"\x1b[2m")
    check("thinking is dimmed", b"\x1b[2m" in seen, seen)
    time.sleep(0.2)
    os.write(fd, b"\x03")
    seen = read_until(b"> ")
    check("Ctrl-C stops the answer, not the chat", seen.endswith(b"> "), seen)
    os.write(fd, b"\x03")
    read_until(b"never")
    status = os.waitpid(pid, 0)[1]
    os.close(fd)
    check("Ctrl-C at the prompt leaves", os.WIFEXITED(status) and os.WEXITSTATUS(status) == 130, status)


def main():
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        model = work / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIG))
        test_help()
        test_usage_errors(model)
        test_file_errors(model, work)
        test_info(model)
        test_class_two_flags(model)
        test_dummy_generate(model)
        test_logits(model, work)
        test_bench(model, work)
        test_tune(model, work)
        test_interrupt(model)
        test_closed_pipe(model)
        if HAS_TOKENIZER:
            text_model = make_text_model(work)
            test_tokenizer(work)
            test_text(work, text_model, ["--load-format", "dummy"])
            test_chat_terminal(text_model, ["--load-format", "dummy"])
        if HAS_WEIGHTS:
            test_text(work, TINY, [])
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
