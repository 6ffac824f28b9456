#!/usr/bin/env python3
"""Tests that a V3.2 checkpoint, cut small and of random weights, runs on the CPU from every command and over HTTP: with
chunks, prefixes of the cache, ranks and every format of its cache. What it does not support is an error of one line."""
import json
import pathlib
import random
import shutil
import subprocess
import sys

from command_line import BIN, ROOT, TINY, expect_error, run, run_tests
from counting import check
from serving import Server

SMALL = {"hidden_size": 256, "intermediate_size": 384, "moe_intermediate_size": 128, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 128, "n_routed_experts": 16,
         "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "vocab_size": 4096,
         "max_position_embeddings": 2048, "index_n_heads": 16, "index_topk": 64}
SIX_LAYERS = ROOT / "bench/configs/v32-6-layers"
PROMPT = random.Random(5).sample(range(2, 4096), 200)


def tool(name, *words):
    done = subprocess.run([pathlib.Path(BIN).parent / name, *map(str, words)], capture_output=True, text=True, timeout=300,
                          check=False)
    check(f"{name} {words[1]}: exit code", done.returncode == 0, done.stderr)


def ids_text(ids):
    return ",".join(map(str, ids))


def generate(model, *flags, prompt=None):
    """Returns the ids of a greedy answer, or the error."""
    code, out, err = run("generate", "--model-path", model, "--device", "cpu", "--input-ids", ids_text(prompt or PROMPT),
                         "--temperature", 0, "--ignore-eos", "--max-new-tokens", 24, "--json", *flags)
    return json.loads(out)["output_ids"] if code == 0 else err


def sizes(_work, model):
    # The cache has 61 layers of 656 or 1152 bytes for the record and 132 bytes for the index key.
    for dtype, expected in (("fp8_e4m3", 48_068), ("bfloat16", 78_324), ("float32", 61 * (2304 + 512))):
        code, out, err = run("info", "--model-path", SIX_LAYERS, "--load-format", "dummy", "--device", "cpu", "--json",
                             "--json-model-override-args", '{"num_hidden_layers": 61}', "--kv-cache-dtype", dtype)
        info = json.loads(out) if out else {}
        check(f"info counts records and index keys in {dtype}", info.get("kv_bytes_per_token") == expected, (info, code, err))
        index = 512 if dtype == "float32" else 132
        check(f"info: index keys in {dtype}", info.get("index_bytes_per_token") == 61 * index, info)
        check(f"info: index_topk with {dtype}", info.get("index_topk") == 2048, info)
        check(f"info: scales with {dtype}", info.get("kv_cache_scales") == ("per_128" if "fp8" in dtype else "none"), info)
    code, out, err = run("info", "--model-path", model, "--device", "cpu")
    check("info says how V3.2 attends", code == 0 and "at most 64 keys, which 16 heads select" in out, out + err)
    check("info names the index keys", "index keys of 132 B" in out, out)


def answers(work, model):
    whole = generate(model, "--chunked-prefill-size", -1)
    check("generate answers", isinstance(whole, list) and len(whole) == 24, whole)
    for chunk in (1, 64, 100):
        check(f"chunks of {chunk} give the same tokens", generate(model, "--chunked-prefill-size", chunk) == whole)
    for tp, ep in ((2, 1), (4, 1), (4, 2)):
        code, out, err = run("info", "--model-path", model, "--device", "cpu", "--tp-size", tp, "--ep-size", ep, "--json")
        check(f"info knows {tp} ranks", code == 0 and len(json.loads(out)["ranks"]) == tp, err)
        ranks = generate(model, "--dtype", "float32", "--tp-size", tp, "--ep-size", ep)
        check(f"{tp} ranks give the same tokens", ranks == generate(model, "--dtype", "float32"), ranks)
    for flags in (("--kv-cache-dtype", "fp8_e4m3"), ("--kv-cache-dtype", "fp8_e4m3", "--kv-cache-scales", "per_token"),
                  ("--dtype", "float32"), ("--kernels", "reference")):
        found = generate(model, *flags, prompt=PROMPT[:90])
        check(f"generate {' '.join(flags)}", isinstance(found, list) and len(found) == 24, found)
    dense = generate(model, "--json-model-override-args", '{"index_topk": 1024}')
    check("index_topk above the context changes the answer, because all keys count", dense != whole, dense)

    plain = work / "plain"
    tool("quantize_checkpoint", "--input", model, "--output", plain, "--format", "bfloat16")
    found = generate(plain)
    check("the same weights in 16 bits", isinstance(found, list) and len(found) == 24, found)
    found = generate(plain, "--quantization", "fp8")
    check("quantised at load", isinstance(found, list) and len(found) == 24, found)
    mixed = work / "mixed"
    tool("quantize_checkpoint", "--input", plain, "--output", mixed, "--format", "fp8", "--ignore", "re:.*indexer.*")
    found = generate(mixed)
    check("an indexer that is not quantised", isinstance(found, list) and len(found) == 24, found)


def served(_work, model):
    with Server("--device", "cpu", "--chunked-prefill-size", 64, model=model) as server:
        def ask(ids):
            status, answer = server.post("/generate", {"input_ids": ids, "sampling_params": {
                "temperature": 0, "max_new_tokens": 24, "ignore_eos": True}})
            return answer if status == 200 else {"error": answer}
        first = ask(PROMPT)
        check("the server answers like generate", first.get("output_ids") == generate(model), first)
        again = ask(PROMPT)
        check("a cached prefix is used", again["meta_info"]["cached_tokens"] == len(PROMPT) - 1, again["meta_info"])
        check("a cached prefix changes nothing", again["output_ids"] == first["output_ids"], again)
        # The prefix ends inside a page, which is copied.
        other = PROMPT[:150] + PROMPT[:30]
        found = ask(other)
        check("part of a page is reused", found["meta_info"]["cached_tokens"] == 150, found["meta_info"])
        check("part of a page changes nothing", found["output_ids"] == generate(model, prompt=other), found)
        info = json.loads(server.request("GET", "/server_info")[2])
        check("/server_info counts index keys",
              (info["kv_record_bytes"], info["kv_index_bytes"], info["kv_bytes_per_token"]) == (1152, 132, 3 * 1284), info)
        check("the server ends in order", server.stop() == 0, server.text())


def refusals(_work, model):
    base = ["generate", "--model-path", model, "--device", "cpu", "--input-ids", "1,2,3"]
    expect_error("float16", 1, ["--dtype float16: DeepseekV32ForCausalLM", "bfloat16, float32"], *base, "--dtype", "float16")
    expect_error("fp8_e5m2", 1, ["--kv-cache-dtype fp8_e5m2: DeepseekV32ForCausalLM", "fp8_e4m3"], *base, "--kv-cache-dtype",
                 "fp8_e5m2")
    words = [*base, "--max-new-tokens", 24, "--temperature", 0]
    check("speculation gives the same text", run(*words)[:2] == run(*words, "--speculative-algo", "NEXTN")[:2])
    for field, value, allowed in (("index_n_heads", 24, "16, 32, 48, 64"), ("index_head_dim", 64, "128"),
                                  ("index_topk", 4096, "2048"), ("indexer_rope_interleave", True, "false")):
        expect_error(f"a bad {field}", 2, [f"{field} is {json.dumps(value)}", allowed], *base, "--json-model-override-args",
                     json.dumps({field: value}))
    code, _, err = run(*base, "--max-new-tokens", 1, "--nsa-seq-len-threshold", 4096, "--nsa-prefill", "flashmla_sparse",
                       "--log-level", "info")
    check("SGLang's flags of sparse attention are accepted", code == 0 and 'flags not used flags="--dsa-seq-len-threshold"' in err, err)
    check("the log names index_topk", "sparse attention index_topk=64 index_heads=16 seq_len_threshold=64" in err, err)
    expect_error("a threshold below 0", 2, ["--nsa-seq-len-threshold -1", "[0, "], *base, "--nsa-seq-len-threshold", -1)


def claims(work, _model):
    model = work / "v32"
    tool("make_checkpoint", "--preset", "v3.2", "--output", model, "--seed", 3, "--override", json.dumps(SMALL))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, model)
    for part in (sizes, answers, refusals, served):
        part(work, model)


if __name__ == "__main__":
    sys.exit(run_tests(claims))
