#!/usr/bin/env python3
"""Compares logits and greedy continuations of every golden and of the bundled model, on the GPU with those on the CPU, both with
bfloat16 weights and cache, and without quantisation with --dtype float16 too. The differences are bounded. FP8 weights are W8A8
on the GPU and dequantised on the CPU: the resulting error is reported, and bounded loosely. Greedy tokens must agree wherever
the CPU's two best logits are further apart than ten times the measured error, and most of all cases' tokens must be equal.

    HADAL_BINARY=build/cuda-release/hadal tests/cuda/e2e_logits.py [--verbose]
"""
import json
import pathlib
import sys
import tempfile

import gpu_checks as gpu

MAX_FAR_SHARE = 0.15
MAX_W8A8_ERROR = 0.2
PROMPTS = ["Please add 217254 and 8366.", "Once upon a time there was a fox who lived by a river. " * 4,
           "Sort these numbers: 17, 4, 99, 23, 8, 61, 5.", "Repeat: kivu moro tane " * 20]


class Case:
    def __init__(self, name, checkpoint, ids, w8a8, new_tokens, dtype="bfloat16"):
        self.name, self.checkpoint, self.ids, self.w8a8, self.new_tokens = name, checkpoint, ids, w8a8, new_tokens
        self.dtype = dtype
        self.equal = 0  # greedy tokens

    def logits(self, directory, device, mode):
        output = pathlib.Path(directory) / f"{self.name.replace(' ', '_')}.{device[1]}.{mode}.safetensors"
        gpu.run(gpu.HADAL, "logits", "--model-path", self.checkpoint, "--input-ids", gpu.ids_text(self.ids), "--output",
                output, "--dtype", self.dtype, "--mode", mode, *device)
        values = gpu.read_f32(output)
        output.unlink()
        return values

    def check_nextn(self, directory):
        """Compares the NextN layer's logits, which both devices compute from their own hidden states."""
        files = []
        for device in (("--device", "cpu"), gpu.GPU):
            files.append(pathlib.Path(directory) / f"{self.name.replace(' ', '_')}.{device[1]}.nextn.safetensors")
            gpu.run(gpu.HADAL, "logits", "--model-path", self.checkpoint, "--input-ids", gpu.ids_text(self.ids), "--output",
                    files[-1], "--dtype", self.dtype, "--nextn", *device)
        expected, got = (gpu.read_f32(file, "nextn_logits") for file in files)
        error = gpu.LogitError(got, expected, gpu.MAX_RELATIVE_ERROR)
        assert error.all <= MAX_W8A8_ERROR, f"NextN: {error}"
        return f"NextN {error}"

    def check(self, directory):
        bound = gpu.MAX_RELATIVE_ERROR / (8 if self.dtype == "float16" else 1)  # three bits more
        text = []
        rms = 0.0
        for mode in ("prefill", "decode"):
            expected = self.logits(directory, ("--device", "cpu"), mode)
            error = gpu.LogitError(self.logits(directory, gpu.GPU, mode), expected, bound)
            rms = max(rms, error.rms)
            text.append(f"{mode} {error}")
            if self.w8a8:
                assert error.all <= MAX_W8A8_ERROR, f"{mode}: {error}"
            else:
                most = max(MAX_FAR_SHARE, 1 / len(self.ids))  # any one token may be a close call
                assert error.relative <= bound and error.far_share <= most, f"{mode}: {error}"
        flags = ("--temperature", 0, "--ignore-eos", "--max-new-tokens", self.new_tokens, "--dtype", self.dtype,
                 *gpu.SMALL_CACHE)
        expected = gpu.generate(self.checkpoint, self.ids, "--device", "cpu", *flags)
        equal, excuse = gpu.compare_greedy(expected, gpu.generate(self.checkpoint, self.ids, *gpu.GPU, *flags), rms)
        self.equal = equal
        text.append(f"{equal} of {self.new_tokens} greedy tokens equal" + (f" ({excuse})" if excuse else ""))
        return "; ".join(text)


def cases(directory):
    found = []
    for golden_path in sorted(gpu.GOLDENS.glob("*/golden.json")):
        name = golden_path.parent.name
        golden = json.loads(golden_path.read_text(encoding="utf-8"))
        config = json.loads((golden_path.parent / "config.json").read_text(encoding="utf-8"))
        if "index_topk" in config:
            continue  # rounding moves its selections; engine/sparse_attention_test.cpp compares V3.2
        checkpoint = pathlib.Path(directory) / name
        gpu.run(gpu.MAKE_CHECKPOINT, "--config", golden_path.parent / "config.json", "--output", checkpoint, "--seed",
                golden["seed"], "--gate-bias-amplitude", golden["gate_bias_amplitude"])
        for case in golden["cases"]:
            ids = case["input_ids"]
            w8a8 = "quantization_config" in config
            for dtype in ("bfloat16",) if w8a8 else ("bfloat16", "float16"):
                found.append(Case(f"{name} {len(ids)} tokens {dtype}", checkpoint, ids, w8a8, len(case["greedy_ids"]), dtype))
    # The kernels for few tokens support these experts in FP8: one group of eight, and two shared ones.
    few = pathlib.Path(directory) / "few_experts_fp8"
    gpu.run(gpu.MAKE_CHECKPOINT, "--config", gpu.TINY / "config.json", "--output", few, "--seed", 11, "--override",
            json.dumps({"n_routed_experts": 8, "n_group": 1, "topk_group": 1, "n_shared_experts": 2}))
    found.append(Case("few_experts_fp8", few, [(7919 * i + 13) % 4096 for i in range(24)], True, 4))
    for i, prompt in enumerate(PROMPTS):
        ids = json.loads(gpu.run(gpu.HADAL, "tokenize", "--model-path", gpu.TINY, "--text", prompt))
        found.append(Case(f"hadal-tiny {i}", gpu.TINY, ids, True, 48))
    return found


def main():
    with tempfile.TemporaryDirectory(prefix="hadal-gpu-logits-") as directory:
        found = cases(directory)
        share = lambda: gpu.check_equal_share(sum(case.equal for case in found), sum(case.new_tokens for case in found))
        checks = [(case.name, lambda case=case: case.check(directory)) for case in found]
        checks += [(f"{case.name} NextN", lambda case=case: case.check_nextn(directory)) for case in found
                   if case.checkpoint == gpu.TINY]
        return gpu.main(checks,
                        after=[("greedy tokens of all cases", share)])


if __name__ == "__main__":
    sys.exit(main())
