#!/usr/bin/env python3
"""Tests speculation with a NextN layer of another directory (--speculative-draft-model-path). A layer with the bundled model's
weights guesses as the model's own does, from a checkpoint and from SGLang's export of the layer, in the model's format and in
another one. A layer that guesses badly changes no token. A directory that has no layer, or one that does not fit, is an error of
one line."""
import json
import shutil
import struct
import sys

from command_line import TINY, expect_error, run, run_tests
from counting import check
from hub_server import HubServer, Repository
from serving import Server

PATH = "--speculative-draft-model-path"
NEXTN = ["--speculative-algorithm", "NEXTN"]
FIXED = [*NEXTN, "--speculative-fixed"]
LAYER = "model.layers.4."  # of the bundled model
EXPORT = "model.layers.0."
COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}
PROMPT = "Write a short story about a brave fox."


def stored_tensors():
    """Returns the bundled model's tensors by name: type, shape and bytes."""
    tensors = {}
    for path in TINY.glob("*.safetensors"):
        data = path.read_bytes()
        size = 8 + struct.unpack("<Q", data[:8])[0]
        for name, info in json.loads(data[8:size]).items():
            if name != "__metadata__":
                begin, end = info["data_offsets"]
                tensors[name] = (info["dtype"], info["shape"], data[size + begin:size + end])
    return tensors


def e4m3(code):
    exponent, fraction = code >> 3 & 15, code & 7
    size = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0**(exponent - 7)
    return -size if code & 128 else size


E4M3 = [e4m3(code) for code in range(256)]


def widened(tensor, scale):
    """Returns a matrix of codes as float32."""
    _, (rows, columns), codes = tensor
    scales = struct.unpack(f"<{len(scale[2]) // 4}f", scale[2])
    stride = scale[1][1]
    values = []
    for row in range(rows):
        for first in range(0, columns, 128):
            factor = scales[row // 128 * stride + first // 128]
            begin = row * columns + first
            values += [E4M3[code] * factor for code in codes[begin:begin + min(128, columns - first)]]
    return "F32", [rows, columns], struct.pack(f"<{len(values)}f", *values)


def in_float32(tensors):
    found = {}
    for name, tensor in tensors.items():
        if tensor[0] == "F8_E4M3":
            found[name] = widened(tensor, tensors[name + "_scale_inv"])
        elif not name.endswith("_scale_inv"):
            found[name] = tensor
    return found


def write_directory(directory, config, tensors, file="model.safetensors"):
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (directory / file).write_bytes(struct.pack("<Q", len(text)) + text + data)
    if file != "model.safetensors":
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, file)}))
    return directory


def export_config(**more):
    config = json.loads((TINY / "config.json").read_text())
    config.update({"architectures": ["DeepseekV3ForCausalLMNextN"], "num_hidden_layers": 1, "first_k_dense_replace": 3, **more})
    return {name: value for name, value in config.items() if value is not None}


class Layers:
    """Makes directories that have the bundled model's NextN layer."""

    def __init__(self, work):
        model = stored_tensors()
        self.layer = {name[len(LAYER):]: tensor for name, tensor in model.items() if name.startswith(LAYER)}
        exported = {EXPORT + name: tensor for name, tensor in self.layer.items()}
        copies = {name: model[name_of_model] for name, name_of_model in COPIES.items()}
        self.export = write_directory(work / "export", export_config(), exported, "nextn_layer_parameters.safetensors")
        self.copies = write_directory(work / "copies", export_config(), {
            **exported, **{EXPORT + name: tensor for name, tensor in copies.items()}})
        wide = {**in_float32(self.layer), **copies}
        self.wide = write_directory(work / "wide", export_config(quantization_config=None), {
            EXPORT + name: tensor for name, tensor in wide.items()})
        self.checkpoint = work / "checkpoint"
        shutil.copytree(TINY, self.checkpoint)
        self.part = write_directory(work / "part", json.loads((TINY / "config.json").read_text()), {
            LAYER + name: tensor for name, tensor in self.layer.items()})
        # An export is also recognised by a tensor alone: here it has another architecture.
        self.plain = write_directory(work / "plain", export_config(architectures=["DeepseekV3ForCausalLM"]), exported)

    def as_the_model(self):
        return [self.export, self.copies, self.checkpoint, self.part, self.plain]


def generated(*flags):
    code, out, err = run("generate", "--model-path", TINY, "--device", "cpu", "--json", "--max-new-tokens", 48, "--prompt", PROMPT,
                         "--temperature", 0, "--logprobs", "--log-level", "info", *flags)
    return (json.loads(out) if code == 0 else {}), err


def nextn_logits(work, *flags):
    """Returns the layer's logits of a few tokens, in float32."""
    path = work / "nextn.safetensors"
    code, _, err = run("logits", "--model-path", TINY, "--device", "cpu", "--dtype", "float32", "--input-ids",
                       ",".join(map(str, range(10, 40))), "--output", path, "--nextn", *flags)
    check(f"logits {flags} succeeds", code == 0, err)
    data = path.read_bytes()
    size = 8 + struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:size])["nextn_logits"]["data_offsets"]
    return struct.unpack(f"<{(end - begin) // 4}f", data[size + begin:size + end])


def same_logits(work, layers):
    own = nextn_logits(work)
    for directory in layers.as_the_model():
        check(f"the layer of {directory.name} has the bits of the model's own", nextn_logits(work, PATH, directory) == own)
    check("ranks agree on the layer of a directory", nextn_logits(work, PATH, layers.export, "--tp-size", 2) ==
          nextn_logits(work, "--tp-size", 2))
    wide = nextn_logits(work, PATH, layers.wide)
    error = sum((a - b)**2 for a, b in zip(wide, own)) / sum(b**2 for b in own)
    check("a layer in float32 differs from its 8-bit form in rounding alone", wide != own and error < 1e-8, error)
    quantised = nextn_logits(work, PATH, layers.wide, "--speculative-draft-model-quantization", "w8a8_int8")
    error = sum((a - b)**2 for a, b in zip(quantised, own)) / sum(b**2 for b in own)
    check("a layer is quantised as its flag says", 1e-8 < error < 0.05, error)


def same_text(layers):
    plain, _ = generated()
    check("there is an answer without speculation", len(plain.get("output_ids", [])) == 48, plain)
    cases = [[directory] for directory in (*layers.as_the_model(), layers.wide)]
    cases += [[layers.export, "--tp-size", 2], [layers.export, "--speculative-draft-load-format", "dummy"],
              [layers.wide, "--speculative-draft-model-quantization", "w8a8_int8"],
              [layers.checkpoint, "--load-format", "auto", "--speculative-draft-model-quantization", "unquant"]]
    for case in cases:
        expected = generated("--tp-size", 2)[0] if "--tp-size" in case else plain
        found, err = generated(*FIXED, PATH, *case)
        for key in ("text", "output_ids", "output_token_logprobs"):
            check(f"{case}: {key} is as without speculation", key in found and found[key] == expected[key], (found, err))
        check(f"{case}: the log names the directory", f"draft layer loaded path={case[0]}" in err, err)
    for directory in (layers.copies, layers.wide):
        check(f"{directory.name}: equal copies of embedding and head are shared",
              "shares_embedding=true shares_head=true" in generated(*FIXED, PATH, directory)[1])
    _, err = generated(*FIXED, PATH, TINY)
    check("the model's own directory is no draft layer", "draft layer loaded" not in err, err)
    _, err = generated(*FIXED, PATH, TINY, "--speculative-draft-load-format", "auto")
    check("the model's own directory with a flag of its own is one", f"draft layer loaded path={TINY}" in err, err)


def accepted(*flags):
    with Server("--device", "cpu", *FIXED, *flags) as server:
        status, found = server.post("/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 64, "temperature": 0}})
        check(f"a server answers with {flags}", status == 200, found)
        return found["text"], found["meta_info"]["spec_accept_token_num"], found["meta_info"]["spec_verify_ct"]


def same_acceptance(layers):
    own = accepted()
    check("the model's own layer guesses something", own[1] > 10, own)
    for directory in (layers.export, layers.checkpoint):
        found = accepted(PATH, directory)
        check(f"the layer of {directory.name} has as many drafts accepted as the model's own", found == own, (found, own))
    found = accepted(PATH, layers.wide)
    check("a layer in float32 guesses about as well", found[0] == own[0] and found[1] > own[1] * 0.7, (found, own))
    found = accepted(PATH, layers.export, "--speculative-draft-load-format", "dummy")
    check("a layer of random weights guesses badly, and gives the same text", found[0] == own[0] and found[1] < own[1] / 2, (found, own))


def hub_ids(work, layers):
    plain, _ = generated()
    found, err = generated(*FIXED, PATH, "team/layer", "--offline")
    check("an id that is not in the cache is a warning", "draft model not read id=team/layer" in err and
          "own NextN layer is used" in err and found.get("text") == plain["text"], err)
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = work / "cache/models--team--layer"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(commit)
    (repository / "snapshots").mkdir()
    shutil.copytree(layers.export, repository / "snapshots" / commit)
    code, out, err = run("generate", "--model-path", TINY, "--device", "cpu", "--json", "--max-new-tokens", 48, "--prompt", PROMPT,
                         "--temperature", 0, "--log-level", "info", *FIXED, PATH, "team/layer",
                         env={"HF_HUB_CACHE": str(work / "cache")})
    check("an id that is in the cache is read from it", code == 0 and "draft layer loaded path=" in err and
          json.loads(out)["text"] == plain["text"], err)
    files = {path.name: path.read_bytes() for path in layers.export.iterdir()}
    with HubServer(Repository(files, name="team/layer")) as hub:
        words = ["generate", "--model-path", TINY, "--device", "cpu", "--json", "--max-new-tokens", 48, "--prompt", PROMPT,
                 "--temperature", 0, "--log-level", "info", *FIXED, PATH]
        env = {"HF_HUB_CACHE": str(work / "fetched"), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0",
               "NO_PROXY": "127.0.0.1"}
        code, out, err = run(*words, "team/layer", env=env)
        check("an id that is not in the cache is fetched", code == 0 and json.loads(out)["text"] == plain["text"] and
              f"draft layer loaded path={work / 'fetched/models--team--layer/snapshots'}" in err, err)
        code, out, err = run(*words, "team/nothing", env=env)
        check("an id that the hub does not have is a warning", code == 0 and json.loads(out)["text"] == plain["text"] and
              "draft model not read id=team/nothing" in err and "no such model" in err and "own NextN layer is used" in err, err)
        hub.repository.files["config.json"] = json.dumps({"architectures": ["Qwen2ForCausalLM"]}).encode()
        asked = len(hub.requests)
        code, out, err = run(*words, "team/layer", env={**env, "HF_HUB_CACHE": str(work / "refused")})
        check("another kind of model is refused before its weights are fetched", code == 0 and "Qwen2ForCausalLM" in err and
              not any(request.is_for(name) for request in hub.requests[asked:] for name in files if name.endswith(".safetensors")), err)


def refusals(work, model, layers):
    base = ["generate", "--model-path", TINY, "--device", "cpu", "--prompt", "Hello", "--max-new-tokens", 4]

    def expect(name, code, wanted, directory, *flags):
        expect_error(name, code, [PATH, *wanted], *base, *NEXTN, PATH, directory, *flags)

    def directory(name, config, without=(), **changed):
        tensors = {EXPORT + key: tensor for key, tensor in {**layers.layer, **changed}.items() if key not in without}
        return write_directory(work / name, config, tensors)

    expect("no such directory", 1, ["/nowhere"], "/nowhere/draft")
    empty = work / "empty"
    empty.mkdir()
    expect("a directory without config.json", 1, ["has no config.json"], empty)
    expect("a checkpoint without the layer", 2, ["num_nextn_predict_layers is 0"], model, "--speculative-draft-load-format", "dummy")
    expect("a directory without weights", 1, ["no weights"], model)
    expect("a checkpoint that lacks the layer's tensors", 1, ["no tensor model.layers.0.eh_proj.weight"],
           directory("bare", export_config(), without=["eh_proj.weight"]))
    for field, value in (("hidden_size", 512), ("n_routed_experts", 8), ("rope_theta", 5000), ("routed_scaling_factor", 1.5)):
        own = export_config()[field]
        expect(f"another {field}", 2, [f"its {field} is {value}, but the model's is {own}"],
               directory(f"other_{field}", export_config(**{field: value})))
    expect("a missing tensor", 1, ["missing: model.layers.0.enorm.weight"],
           directory("missing", export_config(), without=["enorm.weight"]))
    expect("a tensor of another shape", 1, ["model.layers.0.enorm.weight has shape [128], expected [256]"],
           directory("misshapen", export_config(), **{"enorm.weight": ("BF16", [128], bytes(256))}))
    expect("an unknown tensor of the layer", 1, ["unexpected: model.layers.0.extra.weight"],
           directory("extra", export_config(), **{"extra.weight": ("BF16", [128], bytes(256))}))
    expect("a broken config", 1, ["hidden_size"], directory("broken", export_config(hidden_size="wide")))
    expect_error("a contradicting quantisation", 2, ["--speculative-draft-model-quantization w8a8_int8", "fp8 e4m3, 128x128 blocks"],
                 *base, *NEXTN, PATH, layers.export, "--speculative-draft-model-quantization", "w8a8_int8")
    for flag, value in (("--speculative-draft-load-format", "dummy"), ("--speculative-draft-model-quantization", "fp8")):
        expect_error(f"{flag} alone", 2, [flag, f"needs {PATH}"], *base, *NEXTN, flag, value)
    expect_error("a draft layer without an algorithm", 2, [PATH, "needs --speculative-algorithm"], *base, PATH, layers.export)
    expect_error("logits with a draft layer that it does not load", 2, [PATH, "needs --nextn"], "logits", "--model-path", TINY, "--device",
                 "cpu", "--input-ids", "1,2,3", "--output", work / "unused.safetensors", PATH, layers.export)
    for flag in ("--speculative-draft-model-revision", "--speculative-draft-kv-cache-dtype", "--speculative-token-map"):
        expect_error(flag, 2, [flag], *base, *NEXTN, flag, "bf16")


def own_layer_is_not_needed(work, layers):
    """A model whose checkpoint lacks the layer speculates with the layer of a directory."""
    model = work / "target"
    config = {**json.loads((TINY / "config.json").read_text()), "num_nextn_predict_layers": 0}
    write_directory(model, config, {name: tensor for name, tensor in stored_tensors().items() if not name.startswith(LAYER)})
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TINY / name, model)
    plain, _ = generated()
    code, out, err = run("generate", "--model-path", model, "--device", "cpu", "--json", "--max-new-tokens", 48, "--prompt", PROMPT,
                         "--temperature", 0, *FIXED, PATH, layers.export)
    check("a model without a layer of its own speculates", code == 0 and json.loads(out)["output_ids"] == plain["output_ids"], err)
    expect_error("an id that is not in the cache needs the model's own layer", 2, ["--speculative-algorithm", "has no NextN layer"],
                 "generate", "--model-path", model, "--device", "cpu", "--prompt", "Hello", *NEXTN, PATH, "team/layer", "--offline")


def claims(work, model):
    layers = Layers(work)
    refusals(work, model, layers)
    same_logits(work, layers)
    same_text(layers)
    hub_ids(work, layers)
    own_layer_is_not_needed(work, layers)
    same_acceptance(layers)


if __name__ == "__main__":
    sys.exit(run_tests(claims))
