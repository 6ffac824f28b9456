#!/usr/bin/env python3
"""Compares the CUDA engine's logits with Hugging Face transformers on the same GPU, at the models' own dimensions with few
layers and random weights. transformers computes in float32 from the same bf16 checkpoint. Tokens for which a close call
selects other experts are far off, and these tokens cannot be identified from outside. The bound is therefore on the median
token, and the share of far tokens is bounded too.

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
MODELS = {
    "v2-lite": ("v2-lite", {"num_hidden_layers": 3}),
    "v2": ("v2", {"num_hidden_layers": 2, "n_routed_experts": 40}),
    "v3": ("v3", {"num_hidden_layers": 3, "first_k_dense_replace": 1, "n_routed_experts": 32, "quantization_config": None,
                  "num_nextn_predict_layers": 0}),
}


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))[:200]}: exit code {done.returncode}\n{done.stderr[-2000:]}")


@torch.no_grad()
def reference_logits(directory, ids):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                              attn_implementation="eager").to("cuda").eval()
    return model(torch.tensor([ids], device="cuda")).logits[0].float().cpu()


def check(name):
    preset, override = MODELS[name]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as directory:
        checkpoint = pathlib.Path(directory) / name
        run(MAKE_CHECKPOINT, "--preset", preset, "--override", json.dumps(override), "--quantization", "none", "--output",
            checkpoint)
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        rng = random.Random(name)
        ids = [rng.randrange(config["vocab_size"]) for _ in range(NUM_TOKENS)]
        output = pathlib.Path(directory) / "logits.safetensors"
        results = {}
        for mode in ("prefill", "decode"):
            run(HADAL, "logits", "--model-path", checkpoint, "--device", "cuda", "--input-ids", ",".join(map(str, ids)),
                "--mode", mode, "--output", output)
            results[mode] = load_file(output)["logits"].float()
        expected = reference_logits(checkpoint, ids)
    text, ok = [], True
    for mode, out in results.items():
        errors = (out - expected).norm(dim=-1) / expected.norm(dim=-1)
        median, far = errors.median().item(), (errors > 3 * MAX_MEDIAN_ERROR).float().mean().item()
        ok &= median <= MAX_MEDIAN_ERROR and far <= MAX_FAR_SHARE
        text.append(f"{mode}: median error {median:.2e}, worst {errors.max().item():.2e}, {far:.1%} of tokens far off")
    return ok, "; ".join(text)


def main():
    passed = failed = 0
    for name in sys.argv[1:] or MODELS:
        try:
            ok, text = check(name)
        except Exception as error:
            ok, text = False, f"{type(error).__name__}: {error}"
        passed, failed = passed + ok, failed + (not ok)
        print(f"{'ok  ' if ok else 'FAIL'} {name} {text}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
