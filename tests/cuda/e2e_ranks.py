#!/usr/bin/env python3
"""Compares logits and greedy continuations of several ranks (--tp-size, --ep-size) with those of one rank on a GPU. The ranks
take turns on one GPU; where there are as many GPUs as ranks, they are compared on GPUs of their own as well. This is done for the
goldens of every family that a GPU runs, for the bundled model (with NextN, too), and for random models whose parts are uneven.
Ranks add sums that were rounded to 16 bits, so logits may differ as much as those of a GPU and a CPU (e2e_logits.py). Greedy
tokens must agree wherever the two best logits are further apart than ten times the measured error.

    HADAL_BINARY=build/cuda-release/hadal tests/cuda/e2e_ranks.py [--verbose]
"""
import json
import pathlib
import sys
import tempfile

import gpu_checks as gpu
from e2e_logits import MAX_FAR_SHARE, MAX_W8A8_ERROR

SPLITS = [(2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 8)]
NEW_TOKENS = 12


def rank_flags(tp, ep, step):
    return (*gpu.GPU, "--tp-size", tp, "--ep-size", ep, "--gpu-id-step", step)


def check_speculation(step, directory):
    """Compares greedy tokens of the bundled model with speculation, in graphs where ranks have GPUs of their own, and without.
    Speculation does not change the last bits of a prompt's logits, but it does change those of verified rows. The rule of the
    two best logits therefore applies."""
    ranks = rank_flags(2, 1, step)
    flags = (*ranks, "--temperature", 0, "--ignore-eos", "--max-new-tokens", 48, *gpu.SMALL_CACHE)
    nextn = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", 3, "--speculative-fixed")
    ids = [0, 1525, 1524, 265, 1273, 643, 420, 265, 1685, 786, 569, 675, 265, 1192, 16, 223]
    output = pathlib.Path(directory) / f"speculation-{step}.safetensors"
    values = {}
    for mode in ("prefill", "decode"):
        gpu.run(gpu.HADAL, "logits", "--model-path", gpu.TINY, "--input-ids", gpu.ids_text(ids), "--output", output, "--nextn",
                "--mode", mode, *ranks)
        values[mode] = [gpu.read_f32(output, name) for name in ("logits", "nextn_logits")]
    errors = [gpu.LogitError(one, other, gpu.MAX_RELATIVE_ERROR) for one, other in zip(*values.values())]
    assert all(error.relative <= gpu.MAX_RELATIVE_ERROR for error in errors), [str(error) for error in errors]
    plain, got = (gpu.generate(gpu.TINY, ids, *flags, *more) for more in ((), nextn))
    equal, excuse = gpu.compare_greedy(plain, got, errors[0].rms)
    report = json.loads(gpu.run(gpu.HADAL, "eval", "--model-path", gpu.TINY, *ranks, "--limit", 8, "--data",
                                gpu.TINY / "eval/copy.jsonl", "--json", *nextn, *gpu.SMALL_CACHE))
    length = report["tasks"]["copy"]["accept_length"]
    assert length > 1.5, report
    return f"{equal} of 48 greedy tokens equal" + (f" ({excuse})" if excuse else "") + f", {length:.2f} tokens a verification"


class Case:
    """Checks one model at every split that it allows."""

    def __init__(self, name, checkpoint, config, dtype="bfloat16"):
        self.name, self.checkpoint, self.dtype = f"{name} {dtype}", checkpoint, dtype
        self.w8a8 = "quantization_config" in config
        self.ids = [(7919 * i + 13) % config["vocab_size"] for i in range(40)]
        heads, experts = config["num_attention_heads"], config["n_routed_experts"]
        splits = [(tp, ep) for tp, ep in SPLITS if heads % tp == 0 and experts % ep == 0]
        self.splits = [(*split, 0) for split in splits] + [(*split, 1) for split in splits if split[0] <= gpu.num_gpus()]
        self.equal = self.new_tokens = 0

    def logits(self, directory, flags, mode):
        output = pathlib.Path(directory) / f"{self.name.replace(' ', '_')}.safetensors"
        gpu.run(gpu.HADAL, "logits", "--model-path", self.checkpoint, "--input-ids", gpu.ids_text(self.ids), "--output", output,
                "--dtype", self.dtype, "--mode", mode, *flags)
        values = gpu.read_f32(output)
        output.unlink()
        return values

    def check(self, directory):
        bound = gpu.MAX_RELATIVE_ERROR / (8 if self.dtype == "float16" else 1)
        expected = {mode: self.logits(directory, gpu.GPU, mode) for mode in ("prefill", "decode")}
        flags = ("--temperature", 0, "--ignore-eos", "--max-new-tokens", NEW_TOKENS, "--dtype", self.dtype, *gpu.SMALL_CACHE)
        answer = gpu.generate(self.checkpoint, self.ids, *gpu.GPU, *flags)
        text = []
        for tp, ep, step in self.splits:
            ranks = rank_flags(tp, ep, step)
            rms = 0.0
            for mode, reference in expected.items():
                error = gpu.LogitError(self.logits(directory, ranks, mode), reference, bound)
                rms = max(rms, error.rms)
                text.append(f"tp {tp} ep {ep} on {tp if step else 1} GPUs {mode} {error}")
                if self.w8a8:
                    assert error.all <= MAX_W8A8_ERROR, text[-1]
                else:
                    assert error.relative <= bound and error.far_share <= MAX_FAR_SHARE, text[-1]
            got = gpu.generate(self.checkpoint, self.ids, *ranks, *flags)
            equal, excuse = gpu.compare_greedy(answer, got, rms)
            self.equal += equal
            self.new_tokens += NEW_TOKENS
            text.append(f"{equal} of {NEW_TOKENS} greedy tokens equal" + (f" ({excuse})" if excuse else ""))
            plain = gpu.generate(self.checkpoint, self.ids, *ranks, "--disable-overlap-schedule", *flags)
            assert plain["output_ids"] == got["output_ids"], f"tp {tp} ep {ep}: the loops differ"
        return "; ".join(text)


# Their parts are uneven: three and five blocks of 128, a vocabulary that is no multiple of 64, two shared experts.
UNEVEN = {"moe_intermediate_size": 384, "intermediate_size": 640, "n_shared_experts": 2, "num_attention_heads": 8,
          "num_key_value_heads": 8, "vocab_size": 1000}


def make(directory, name, config_path, seed, overrides, bias="0"):
    checkpoint = pathlib.Path(directory) / name
    gpu.run(gpu.MAKE_CHECKPOINT, "--config", config_path, "--output", checkpoint, "--seed", seed, "--gate-bias-amplitude", bias,
            "--override", json.dumps(overrides))
    return checkpoint, json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))


def cases(directory):
    found = []
    for golden_path in sorted(gpu.GOLDENS.glob("*/golden.json")):
        folder = golden_path.parent
        if "index_topk" in json.loads((folder / "config.json").read_text(encoding="utf-8")):
            continue  # rounding moves its selections; engine/sparse_attention_test.cpp compares V3.2
        golden = json.loads(golden_path.read_text(encoding="utf-8"))
        checkpoint, config = make(directory, folder.name, folder / "config.json", golden["seed"], {},
                                  golden["gate_bias_amplitude"])
        found.append(Case(folder.name, checkpoint, config))
        if folder.name == "v2_lite":
            found.append(Case(folder.name, checkpoint, config, "float16"))
    for folder in ("v2", "v2_lite", "v3", "v3_fp8"):
        name = f"uneven_{folder}"
        found.append(Case(name, *make(directory, name, gpu.GOLDENS / folder / "config.json", 23, UNEVEN)))
    found.append(Case("hadal-tiny", gpu.TINY, json.loads((gpu.TINY / "config.json").read_text(encoding="utf-8"))))
    return found


def main():
    with tempfile.TemporaryDirectory(prefix="hadal-gpu-ranks-") as directory:
        found = cases(directory)
        share = lambda: gpu.check_equal_share(sum(case.equal for case in found), sum(case.new_tokens for case in found))
        checks = [(case.name, lambda case=case: case.check(directory)) for case in found]
        for step in (0, 1) if gpu.num_gpus() >= 2 else (0,):
            checks.append((f"speculation of two ranks, --gpu-id-step {step}", lambda step=step: check_speculation(step, directory)))
        return gpu.main(checks, after=[("greedy tokens of all cases", share)])


if __name__ == "__main__":
    sys.exit(main())
