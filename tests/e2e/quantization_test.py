#!/usr/bin/env python3
"""Tests quantised checkpoints of every published spelling, made from the bundled model by
quantize_checkpoint: each loads, writes, and answers the bundled questions as the model itself does; wrong
files and contradictory flags are refused with an error message. It needs only the standard library.

    HADAL_BINARY=build/cpu-release/hadal tests/e2e/quantization_test.py [--limit N] [--all] [--device cuda] [--verbose]
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import counting

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "models/hadal-tiny"
HADAL = pathlib.Path(os.environ.get("HADAL_BINARY", ROOT / "build/cpu-release/hadal"))
QUANTIZE = HADAL.parent / "quantize_checkpoint"
MAX_LOST = 2  # questions of a task

# Each format of quantize_checkpoint has (its description by info, words of --quantization that mean the same, whether
# its answers to the bundled questions are scored on a CPU even without --all).
FORMATS = {
    "fp8": ("fp8 e4m3, 128x128 blocks", {"fp8"}, False),  # the bundled model's own bytes
    "fp8-tensor": ("fp8 e4m3, one scale per matrix", {"fp8", "w8a8_fp8"}, False),
    "compressed-fp8-tensor": ("fp8 e4m3, one scale per matrix", {"fp8", "w8a8_fp8"}, True),
    "compressed-fp8-channel": ("fp8 e4m3, one scale per row", {"w8a8_fp8"}, True),
    "compressed-int8": ("int8, one scale per row", {"w8a8_int8"}, False),
    "w8a8_fp8": ("fp8 e4m3, one scale per row", {"w8a8_fp8"}, False),
    "w8a8_int8": ("int8, one scale per row", {"w8a8_int8"}, True),
    "blockwise_int8": ("int8, 128x128 blocks", {"blockwise_int8"}, True),
}
WORDS = ("fp8", "w8a8_fp8", "w8a8_int8", "blockwise_int8")

verbose = False
device = "cpu"


def check(name, ok, detail=""):
    if verbose and ok:
        print(f"ok {name}", flush=True)
    return counting.check(name, ok, str(detail)[-1500:])


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


def hadal(command, model, *flags):
    return run(HADAL, command, "--model-path", model, "--device", device, *flags)


def expect_error(name, code, words, done):
    returncode, _, err = done
    line = err.splitlines()[-1] if err.splitlines() else ""
    check(name, returncode == code and all(word in err for word in words) and "Traceback" not in err,
          f"exit {returncode}, wanted {code} and {words}: {line}")


def scores(model, limit, *flags):
    data = sorted((TINY / "eval").glob("*.jsonl"))
    code, out, err = hadal("eval", model, "--data", *data, *(("--limit", limit) if limit else ()), "--json",
                           "--log-level", "warning", *flags)
    if code != 0:
        raise AssertionError(err[-1500:])
    return {task: (score["correct"], score["total"]) for task, score in json.loads(out)["tasks"].items()}


def expect_scores(name, model, limit, *flags):
    """The bundled model answers all of these questions correctly (eval/scores.json)."""
    try:
        found = scores(model, limit, *flags)
    except AssertionError as error:
        check(f"{name}: eval", False, error)
        return
    lost = {task: total - correct for task, (correct, total) in found.items() if correct < total}
    check(f"{name}: {len(found)} tasks, lost {lost or 'none'}",
          len(found) == 9 and all(count <= MAX_LOST for count in lost.values()), found)


def text_of(model, *flags):
    code, out, err = hadal("generate", model, "--prompt", "Once there was a brave fox", "--max-new-tokens", "24",
                           "--temperature", "0", "--json", "--log-level", "warning", *flags)
    return json.loads(out)["text"] if code == 0 else f"exit {code}: {err}"


def read_shard(directory):
    blob = (directory / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8:begin])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], blob[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def write_shard(directory, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (directory / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))


def changed_copy(source, target, tensors=None, config=None):
    """Returns a copy of a checkpoint with other tensors or another config.json."""
    shutil.copytree(source, target)
    if tensors is not None:
        write_shard(target, tensors)
    if config is not None:
        (target / "config.json").write_text(json.dumps(config))
    return target


def test_formats(work, limit, all_formats):
    reference = text_of(TINY)
    check("the bundled model writes", len(reference) > 40, reference)
    for name, (described, words, asked) in FORMATS.items():
        model = work / name
        code, out, err = run(QUANTIZE, "--input", TINY, "--output", model, "--format", name)
        if not check(f"{name}: quantize_checkpoint", code == 0 and "quantised=232" in out, err + out):
            continue
        code, out, err = hadal("info", model, "--json")
        check(f"{name}: info", code == 0 and json.loads(out)["quantization"] == described, out + err)
        for word in WORDS:
            done = hadal("info", model, "--json", "--quantization", word)
            if word in words:
                check(f"{name}: --quantization {word} says the same", done[0] == 0, done[2])
            else:
                expect_error(f"{name}: --quantization {word} contradicts", 2,
                             [f"--quantization {word} means ", f"is stored as {described}; allowed: "], done)
        text = text_of(model)
        check(f"{name}: generate", len(text) > 40 and not text.startswith("exit"), text)
        if name == "fp8" and device == "cpu":
            check("fp8: the bundled model's own bytes", text == reference, (text, reference))
        if asked or all_formats:
            expect_scores(name, model, limit)


def test_load_quantization(work, limit, all_formats):
    """--quantization makes the same formats from 16-bit weights at load."""
    plain = work / "bfloat16"
    code, out, err = run(QUANTIZE, "--input", TINY, "--output", plain, "--format", "bfloat16")
    check("bfloat16: quantize_checkpoint", code == 0 and "quantised=0" in out, err)
    for word in WORDS:
        text = text_of(plain, "--quantization", word)
        check(f"bfloat16: generate --quantization {word}", len(text) > 40 and not text.startswith("exit"), text)
        if all_formats:
            expect_scores(f"bfloat16 --quantization {word}", plain, limit, "--quantization", word)
    # On a CPU the plain kernels compute the same.
    for word in ("w8a8_int8", "blockwise_int8") if device == "cpu" else ():
        check(f"bfloat16: --kernels reference --quantization {word}",
              text_of(plain, "--quantization", word, "--kernels", "reference") ==
              text_of(plain, "--quantization", word))
    code, out, err = hadal("generate", plain, "--prompt", "x", "--max-new-tokens", "2", "--load-format", "dummy",
                           "--quantization", "w8a8_int8", "--log-level", "warning")
    check("dummy weights are quantised too", code == 0, err)
    expect_error("unknown word", 2, ["awq", "blockwise_int8"], hadal("info", plain, "--quantization", "awq"))


def test_mixed_pairs(work, limit):
    """In these checkpoints some linears are not quantised. If only one of gate_proj and up_proj is quantised, it is
    widened at load. On a GPU this also holds for every linear that is stored in one stack with one that is not
    quantised."""
    for form, ignored, flags in (("w8a8_int8", ("re:.*up_proj",), ()), ("blockwise_int8", ("up_proj",), ()),
                                 ("fp8-tensor", ("re:.*gate_proj",), ("--quantization", "fp8")),
                                 ("compressed-int8", ("shared_experts", "kv_a_proj_with_mqa"), ()),
                                 ("compressed-fp8-channel", ("kv_b_proj", "model.layers.0.mlp"), ()),
                                 ("fp8", ("o_proj", "experts"), ())):
        model = work / f"mixed {form}"
        code, out, err = run(QUANTIZE, "--input", TINY, "--output", model, "--format", form, "--ignore", *ignored)
        if check(f"mixed {form}: quantize_checkpoint", code == 0 and "quantised=" in out, out + err):
            for kernels in ("auto", "reference"):
                text = text_of(model, "--kernels", kernels, *flags)
                check(f"mixed {form}: generate with {kernels} kernels", len(text) > 40 and not text.startswith("exit"), text)
    for form in ("w8a8_int8",) if device == "cpu" else ("w8a8_int8", "compressed-int8", "compressed-fp8-channel", "fp8"):
        expect_scores(f"mixed {form}", work / f"mixed {form}", limit)


def test_tool_says_what_it_leaves(work):
    model = work / "said"
    model.mkdir()
    mine = (TINY / "tokenizer_config.json").read_text() + "\n"
    (model / "tokenizer_config.json").write_text(mine)
    code, out, err = run(QUANTIZE, "--input", TINY, "--output", model, "--format", "compressed-fp8-channel", "--ignore",
                         "up_proj", "no_such_module", "re:.*nowhere")
    check("--ignore that matches nothing", code == 0 and all(
        f"warning: --ignore {word} matches no linear layer" in err for word in ("no_such_module", "re:.*nowhere"))
        and "--ignore up_proj" not in err, err)
    check("a tool that quantised says no more", "no linear layer was quantised" not in err, err)
    check("files that stay", f"already in {model} and not changed: tokenizer_config.json" in err
          and (model / "tokenizer_config.json").read_text() == mine, err)
    code, out, err = run(QUANTIZE, "--input", TINY, "--output", work / "nothing", "--format", "fp8", "--ignore", "re:.*")
    check("nothing quantised is a warning", code == 0 and "warning: no linear layer was quantised, because --ignore matches"
          in err and "quantised=0" in out, (code, out, err))
    for value, words in (("re:([", 'contains "re:([", which is not a regular expression'), ("o_proj,up_proj", "--ignore A B"),
                         ("", "contains an entry of 0 bytes")):
        code, out, err = run(QUANTIZE, "--input", TINY, "--output", work / "none", "--format", "fp8", "--ignore", value)
        check(f"--ignore {value}", code == 2 and "--ignore" in err and words in err and "config.json" not in err
              and not (work / "none").exists(), err)
    for value in ("0", "-5", "many"):
        code, out, err = run(QUANTIZE, "--input", TINY, "--output", work / "none", "--format", "fp8", "--max-shard-bytes",
                             value)
        check(f"--max-shard-bytes {value}", code == 2 and "e-308" not in err + out and value in err + out, err + out)
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"]["ignore"].append("o_proj")
    code, out, err = hadal("generate", changed_copy(model, work / "ignored", config=config), "--prompt", "x")
    check("codes of what is ignored", code == 1 and "o_proj.weight is F8_E4M3" in err and "leaves it out" in err, err)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 123456\n"
    for name in ("model-00002-of-00002.safetensors", "tokenizer.json"):
        target = changed_copy(TINY, work / f"pointer {name}")
        (target / name).write_text(pointer)
        expect_error(f"a pointer for {name}", 1, [name, "is a Git LFS pointer"], hadal("generate", target, "--prompt", "x"))


def test_files_without_config(work):
    """Some published INT8 checkpoints do not declare their format, so --quantization must name it."""
    source = work / "w8a8_int8"
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    bare = changed_copy(source, work / "bare_int8", config=config)
    check("no config: as with one", text_of(bare, "--quantization", "w8a8_int8") == text_of(source))
    code, out, err = hadal("info", bare, "--json", "--quantization", "w8a8_int8")
    check("no config: info", code == 0 and json.loads(out)["quantization"] == "int8, one scale per row", err)
    done = hadal("generate", bare, "--prompt", "x", "--quantization", "blockwise_int8")
    expect_error("no config: another format", 2, ["means int8, 128x128 blocks", "allowed: w8a8_int8"], done)
    check("no config: the flag is needed", "leave the flag out" not in done[2], done[2])
    code, out, err = hadal("info", bare)
    check("no config, no flag: info", code == 0 and "the files are int8, one scale per row: --quantization w8a8_int8 loads" in out,
          out + err)
    expect_error("no config, no flag", 1, ["is I8, expected BF16, F16 or F32", "only the flag --quantization of `hadal`", "`hadal info`"],
                 hadal("generate", bare, "--prompt", "x"))
    return bare


def test_wrong_files(work, bare):
    source = work / "w8a8_int8"
    name = "model.layers.2.self_attn.o_proj.weight"
    tensors = read_shard(source)
    wrong = {key: value for key, value in tensors.items() if key != name + "_scale"}
    expect_error("no weight_scale", 1, [f"missing: {name}_scale"],
                 hadal("generate", changed_copy(source, work / "no_scale", wrong), "--prompt", "x"))
    dtype, shape, data = tensors[name + "_scale"]
    wrong = {**tensors, name + "_scale": (dtype, [shape[0] // 2, 2], data)}
    expect_error("weight_scale of another shape", 1, [f"{name}_scale has shape [128, 2], expected [256, 1]"],
                 hadal("generate", changed_copy(source, work / "wrong_shape", wrong), "--prompt", "x"))
    wrong = {key: value for key, value in tensors.items() if not key.endswith("_scale")}
    expect_error("int8 without scales", 1, ["is I8 but has neither"],
                 hadal("generate", changed_copy(bare, work / "bare_no_scale", wrong), "--prompt", "x",
                       "--quantization", "w8a8_int8"))
    # Scales of activations belong to static checkpoints and are ignored.
    static = {**tensors, name[:-len("weight")] + "input_scale": ("F32", [1], b"\0\0\x80\x3f")}
    check("input_scale is not used",
          text_of(changed_copy(source, work / "static", static)) == text_of(source))


def test_configs(work):
    source = work / "compressed-int8"
    config = json.loads((source / "config.json").read_text())

    def expect_refused(name, words, change):
        changed = json.loads(json.dumps(config))
        change(changed["quantization_config"])
        model = changed_copy(source, work / f"config {name}", config=changed)
        expect_error(f"config: {name}", 1, words, hadal("info", model))

    weights = lambda q: q["config_groups"]["group_0"]["weights"]
    expect_refused("4 bits", ["quantization_config.config_groups.group_0.weights.num_bits is 4"],
                   lambda q: weights(q).update(num_bits=4))
    expect_refused("groups", ["weights.strategy is \"group\"; supported: tensor, channel, block"],
                   lambda q: weights(q).update(strategy="group"))
    expect_refused("asymmetric", ["weights.symmetric is false"], lambda q: weights(q).update(symmetric=False))
    expect_refused("KV cache", ["kv_cache_scheme is an object"], lambda q: q.update(kv_cache_scheme={"num_bits": 8}))
    expect_refused("sparse", ["sparsity_config.format"], lambda q: q.update(sparsity_config={"format": "sparse"}))
    expect_refused("method", ["quant_method is \"awq\""], lambda q: q.update(quant_method="awq"))
    older = dict(config)
    older["compression_config"] = older.pop("quantization_config")
    model = changed_copy(source, work / "older", config=older)
    check("compression_config means the same", text_of(model) == text_of(source))


def test_tool(work):
    expect_error("tool: a directory that is taken", 1, ["already contains"],
                 run(QUANTIZE, "--input", TINY, "--output", work / "fp8", "--format", "w8a8_int8"))
    expect_error("tool: unknown format", 2, [], run(QUANTIZE, "--input", TINY, "--output", work / "x", "--format", "int4"))
    expect_error("tool: no checkpoint", 1, ["config.json"],
                 run(QUANTIZE, "--input", work / "nowhere", "--output", work / "x", "--format", "fp8"))
    tensors = read_shard(work / "bfloat16")
    name = "model.layers.1.self_attn.o_proj.weight"
    dtype, shape, data = tensors[name]
    wrong = {**tensors, name: (dtype, shape, b"\xc0\x7f" + data[2:])}
    broken = changed_copy(work / "bfloat16", work / "nan", wrong)
    for form in ("w8a8_int8", "fp8", "fp8-tensor"):
        expect_error(f"tool: NaN to {form}", 1, [f"{name} contains NaN or infinity"],
                     run(QUANTIZE, "--input", broken, "--output", work / "from_nan", "--format", form))
        check(f"tool: nothing is left of a failed {form}", not (work / "from_nan").exists())
    config = json.loads((work / "fp8/config.json").read_text())
    config["quantization_config"]["scale_fmt"] = "ue8m0"
    for name, ignored, source, kept in (("all", (), "ue8m0", "ue8m0"), ("fewer", ("o_proj",), "ue8m0", "ue8m0")):
        if not (work / source).exists():
            changed_copy(work / "fp8", work / source, config=config)
        code, out, err = run(QUANTIZE, "--input", work / source, "--output", work / f"ue8m0 {name}", "--format", "fp8",
                             *(word for module in ignored for word in ("--ignore", module)))
        found = json.loads((work / f"ue8m0 {name}/config.json").read_text())["quantization_config"] if code == 0 else err
        check(f"tool: scale_fmt of copied blocks, {name}", code == 0 and found.get("scale_fmt") == kept, found)
    code, out, err = run(QUANTIZE, "--input", work / "ue8m0", "--output", work / "ue8m0 w8a8", "--format", "w8a8_fp8")
    check("tool: new scales have no scale_fmt", code == 0 and "scale_fmt" not in (work / "ue8m0 w8a8/config.json").read_text(), err)
    taken = work / "taken"
    taken.mkdir()
    (taken / "model.safetensors.index.json").write_text("{}")
    expect_error("tool: an index that is there", 1, ["already contains model.safetensors.index.json"],
                 run(QUANTIZE, "--input", TINY, "--output", taken, "--format", "w8a8_int8", "--max-shard-bytes", "3000000"))
    check("tool: the index stays", (taken / "model.safetensors.index.json").read_text() == "{}")
    code, out, err = run(QUANTIZE, "--input", work / "bfloat16", "--output", work / "shards", "--format", "w8a8_int8",
                         "--max-shard-bytes", "3000000", "--ignore", "re:.*kv_b_proj$", "--ignore", "model.layers.0.mlp")
    check("tool: shards", code == 0 and "quantised=224" in out and len(list((work / "shards").glob("*.safetensors"))) > 4,
          out + err)
    text = text_of(work / "shards")
    check("tool: shards load", len(text) > 40 and not text.startswith("exit"), text)


def main():
    global verbose, device
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=8, help="questions per task; 0: all 320 (default 8)")
    parser.add_argument("--all", action="store_true", help="ask the questions in every format, made at load too")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu",
                        help="cuda: every format on a GPU, checkpoints and made at load; files and configs are the CPU's")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    verbose, device = options.verbose, options.device
    with tempfile.TemporaryDirectory(prefix="hadal-quantised-") as directory:
        work = pathlib.Path(directory)
        on_gpu = device == "cuda"
        test_formats(work, options.limit, options.all or on_gpu)
        test_load_quantization(work, options.limit, options.all or on_gpu)
        test_mixed_pairs(work, options.limit)
        if on_gpu:
            return counting.finish()
        test_tool_says_what_it_leaves(work)
        bare = test_files_without_config(work)
        test_wrong_files(work, bare)
        test_configs(work)
        test_tool(work)
    return counting.finish()


if __name__ == "__main__":
    sys.exit(main())
