#!/usr/bin/env python3
"""Compares the CUDA engine's logits with Hugging Face transformers on the same GPU, at the models' own dimensions with few
layers and random weights. transformers computes in float32 from the same bf16 checkpoint. Tokens for which a close call
selects other experts are far off, and these tokens cannot be identified from outside. The bound is therefore on the median
token, and the share of far tokens is bounded too. V3.2 gets more tokens than an indexer selects, and needs transformers 5.23;
with an older one it is skipped.

    HADAL_BINARY=build/cuda-release/hadal tests/cuda/transformers_test.py [NAME …]
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

HADAL = pathlib.Path(os.environ.get("HADAL_BINARY", "build/cuda-release/hadal"))
MAKE_CHECKPOINT = HADAL.parent / "make_checkpoint"
NUM_TOKENS = 300
MAX_MEDIAN_ERROR = 3e-2  # |out − ref| / |ref| of the median token
MAX_FAR_SHARE = 0.2      # tokens beyond three times that
V3_LAYERS = {"num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 32, "quantization_config": None,
             "num_nextn_predict_layers": 0}
MODELS = {
    "v2-lite": ("v2-lite", {"num_hidden_layers": 3}),
    "v2": ("v2", {"num_hidden_layers": 2, "n_routed_experts": 40}),
    "v3": ("v3", V3_LAYERS),
    "v3.2": ("v3.2", V3_LAYERS),
}
SPARSE_TOKENS = 4500  # prompt of V3.2
INDEX_TOPK = 2048
NEEDS = {"v3.2": (5, 23)}  # version of transformers


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))[:200]}: exit code {done.returncode}\n{done.stderr[-2000:]}")


@torch.no_grad()
def reference_logits(directory, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                              attn_implementation="eager").to("cuda").eval()
    return model(torch.tensor([ids], device="cuda")).logits[0].float().cpu()


def why_skipped(name):
    """Returns why a model cannot be compared here, or None."""
    needed = NEEDS.get(name, (0, 0))
    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) >= needed:
        return None
    return f"needs transformers {needed[0]}.{needed[1]}; this is {transformers.__version__}"


def check(name):
    preset, override = MODELS[name]
    num_tokens = SPARSE_TOKENS if name in NEEDS else NUM_TOKENS
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        checkpoint = pathlib.Path(directory) / name
        run(MAKE_CHECKPOINT, "--preset", preset, "--override", json.dumps(override), "--quantization", "none", "--output",
            checkpoint)
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        rng = random.Random(name)
        ids = [rng.randrange(config["vocab_size"]) for _ in range(num_tokens)]
        output = pathlib.Path(directory) / "logits.safetensors"
        results = {}
        for mode in ("prefill", "decode"):
            # Decode of V3.2 begins shortly before the first token that selects.
            late = name in NEEDS and mode == "decode"
            run(HADAL, "logits", "--model-path", checkpoint, "--device", "cuda", "--input-ids", ",".join(map(str, ids)),
                *(["--decode-from", INDEX_TOPK - 50] if late else ["--mode", mode]), "--output", output)
            results[mode] = load_file(output)["logits"].float()
        expected = reference_logits(checkpoint, ids)
    text, ok = [], True
    for mode, out in results.items():
        errors_of_all = (out - expected).norm(dim=-1) / expected.norm(dim=-1)
        parts = {"": errors_of_all}
        if name in NEEDS:
            parts = {" to all keys": errors_of_all[:INDEX_TOPK], " to selected keys": errors_of_all[INDEX_TOPK:]}
        for part, errors in parts.items():
            median, far = errors.median().item(), (errors > 3 * MAX_MEDIAN_ERROR).float().mean().item()
            ok &= median <= MAX_MEDIAN_ERROR and far <= MAX_FAR_SHARE
            text.append(f"{mode}{part}: median error {median:.2e}, worst {errors.max().item():.2e}, {far:.1%} of tokens far off")
    return ok, "; ".join(text)


def main():
    passed = failed = skipped = 0
    for name in sys.argv[1:] or MODELS:
        why = why_skipped(name)
        if why:
            skipped += 1
            print(f"skip {name} {why}", flush=True)
            continue
        try:
            ok, text = check(name)
        except Exception as error:
            ok, text = False, f"{type(error).__name__}: {error}"
        passed, failed = passed + ok, failed + (not ok)
        print(f"{'ok  ' if ok else 'FAIL'} {name} {text}", flush=True)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed or passed + skipped == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
