"""Makes tests/model/goldens_nextn/: what the NextN layer of small random models predicts, by reference.py in float64. See
README.md for the files and the bounds.

    python make_nextn_goldens.py [--output DIR]
"""

import argparse
import json
import pathlib
import struct

import numpy as np

import configs
import random_weights
import reference

NAMES = ["v2_lite", "v3", "v3_fp8", "v32"]
PROMPT_LENGTH = 150  # tokens; crosses two page borders
# The choice of experts and of keys must survive float32.
MIN_ROUTING_MARGIN = 2e-4
MIN_SELECTION_MARGIN = 1e-4
MAX_ATTEMPTS = 400


def make_weights(config, options):
    """Returns float64 weights by name, with FP8 dequantised."""
    stored = {name: (random_weights.make(name, shape, dtype, options), dtype)
              for name, shape, dtype in reference.tensor_specs(config, nextn=True)}
    weights = {}
    for name, (data, dtype) in stored.items():
        if dtype == "F8_E4M3":
            weights[name] = random_weights.dequantize(data, stored[name + "_scale_inv"][0]).astype(np.float64)
        elif not name.endswith("weight_scale_inv"):
            weights[name] = random_weights.to_float32(data, dtype).astype(np.float64)
    return weights


def bad_tokens(trace, selections):
    """Returns the positions whose choice of experts or keys has too small a margin."""
    return ({token for _, token, _, margin in trace if margin < MIN_ROUTING_MARGIN}
            | {token for _, token, margin in selections if margin < MIN_SELECTION_MARGIN})


def save_tensor(path, name, values):
    data = np.ascontiguousarray(values, dtype="<f4").tobytes()
    header = json.dumps({name: {"dtype": "F32", "shape": list(values.shape), "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def make_golden(name, seed, output):
    config, bias = configs.GOLDENS[name]
    config = {**config, "num_nextn_predict_layers": 1}
    options = random_weights.Options(seed=seed, num_hidden_layers=config["num_hidden_layers"], gate_bias_amplitude=bias,
                                     ue8m0_scales=config.get("quantization_config", {}).get("scale_fmt") == "ue8m0")
    weights = make_weights(config, options)
    rng = np.random.default_rng(seed)
    ids = rng.integers(2, config["vocab_size"], size=PROMPT_LENGTH)
    for _ in range(MAX_ATTEMPTS):
        trace, selections = [], []
        logits = reference.forward_nextn(config, weights, ids, trace, selections)
        bad = bad_tokens(trace, selections)
        if not bad:
            break
        # A token influences only itself and later ones, so the first bad token is drawn again.
        ids[min(bad)] = rng.integers(2, config["vocab_size"])
    else:
        raise AssertionError(f"{name}: no prompt of {PROMPT_LENGTH} tokens satisfies the bounds")
    directory = output / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (directory / "nextn.json").write_text(json.dumps(
        {"seed": seed, "gate_bias_amplitude": bias, "input_ids": ids.tolist()}) + "\n")
    save_tensor(directory / "nextn.safetensors", "nextn_logits", logits)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "tests/model/goldens_nextn")
    args = parser.parse_args()
    for name in NAMES:
        make_golden(name, 101 + NAMES.index(name), args.output)
        print(f"{name}: done", flush=True)


if __name__ == "__main__":
    main()
