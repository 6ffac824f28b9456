"""Makes tests/model/goldens/: logits and greedy continuations of small random models by Hugging Face transformers
in float32, checked against reference.py in float64. See README.md for the files and the bounds.

    python make_goldens.py [--only NAME …] [--output DIR]
"""

import argparse
import json
import pathlib
import tempfile
import time

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

import configs
import random_weights
import reference

PROMPT_LENGTHS = [5, 70, 135, 260]
NEW_TOKENS = 32
CANDIDATES = 48  # last tokens tried for one prompt
MAX_ATTEMPTS = 40
MIN_GREEDY_GAP = 0.04  # between the two best logits at each generated token; logits have a deviation of 1
# The choice of experts must survive bf16's errors: in gate logits for softmax, in scores for sigmoid.
MIN_ROUTING_MARGIN = {"softmax": 4e-3, "sigmoid": 1e-3}
MIN_DISTINCT_TOKENS = 8  # in a continuation, because models this small often repeat short loops
MAX_DISAGREEMENT = 1e-5  # relative error of transformers against the float64 reference


def make_weights(config, options):
    """Returns (float32 weights by name with FP8 dequantised, checksum over the stored tensors)."""
    stored = {name: (random_weights.make(name, shape, dtype, options), dtype)
              for name, shape, dtype in reference.tensor_specs(config)}
    total = 0
    for name, (data, _) in stored.items():
        tensor = random_weights.checksum(data)
        total += random_weights.mix64(random_weights.fnv1a64(name.encode()) ^ tensor)
    weights = {}
    for name, (data, dtype) in stored.items():
        if dtype == "F8_E4M3":
            weights[name] = random_weights.dequantize(data, stored[name + "_scale_inv"][0])
        elif not name.endswith("weight_scale_inv"):
            weights[name] = random_weights.to_float32(data, dtype)
    return weights, total & random_weights.MASK64


def load_model(config, weights):
    with tempfile.TemporaryDirectory() as directory:
        plain = {k: v for k, v in config.items() if k != "quantization_config"}
        plain["torch_dtype"] = "float32"
        pathlib.Path(directory, "config.json").write_text(json.dumps(plain))
        save_file(weights, pathlib.Path(directory, "model.safetensors"), metadata={"format": "pt"})
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager",
            experts_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (kind, info[kind])
    return model.eval()


class RoutingMargins:
    """Keeps the smallest routing margin over layers and positions of each sequence, since reset()."""

    def __init__(self, config, model):
        self.config, self.worst = config, None
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(self.hook)

    def reset(self, batch):
        self.worst = np.full(batch, np.inf)

    def hook(self, module, inputs, output):
        bias = getattr(module, "e_score_correction_bias", None)
        margins = routing_margins(self.config, output[0].double(), 0.0 if bias is None else bias.double())
        self.worst = np.minimum(self.worst, margins.reshape(len(self.worst), -1).amin(dim=1).numpy())


def routing_margins(config, logits, bias):
    """Returns reference.select_experts' margin of many tokens at once; [tokens, experts] -> [tokens]."""
    sigmoid = config["scoring_func"] == "sigmoid"
    choice = logits.sigmoid() + bias if sigmoid else logits
    margin = torch.full((len(logits),), float("inf"), dtype=torch.float64)
    if config["topk_method"] != "greedy" and config["n_group"] > 1:
        grouped = choice.view(len(logits), config["n_group"], -1)
        scores = grouped.topk(2, dim=-1).values.sum(dim=-1) if sigmoid else grouped.amax(dim=-1)
        best = scores.topk(config["topk_group"] + 1, dim=-1)
        margin = best.values[:, -2] - best.values[:, -1]
        kept = torch.zeros_like(scores).scatter_(1, best.indices[:, :-1], 1.0).bool()
        choice = grouped.masked_fill(~kept[..., None], float("-inf")).flatten(1)
    best = choice.topk(config["num_experts_per_tok"] + 1, dim=-1).values
    return torch.minimum(margin, best[:, -2] - best[:, -1])


@torch.no_grad()
def grow_prompt(config, model, margins, length, rng):
    """Returns (random ids, their cache): every position routes clearly; a token that does not is drawn again."""
    bound = MIN_ROUTING_MARGIN[config["scoring_func"]]
    ids, cache = [], transformers.DynamicCache(config=model.config)
    while len(ids) < length:
        token = int(rng.integers(2, config["vocab_size"]))
        margins.reset(1)
        model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        if margins.worst[0] < bound:
            cache.crop(-1)
        else:
            ids.append(token)
    return ids, cache


@torch.no_grad()
def continue_greedily(config, model, cache, last_tokens, margins):
    """Continues one cached sequence by each of last_tokens, then greedily; candidates that break a bound are dropped
    on the way. Returns [(last token, continuation, smallest gap of the two best logits)]."""
    bound = MIN_ROUTING_MARGIN[config["scoring_func"]]
    cache.batch_repeat_interleave(len(last_tokens))
    history, gaps = last_tokens[:, None], np.full(len(last_tokens), np.inf)
    while len(history) and history.shape[1] <= NEW_TOKENS:
        margins.reset(len(history))
        step = model(torch.from_numpy(history[:, -1:]), past_key_values=cache, use_cache=True).logits[:, -1]
        best = step.topk(2, dim=-1)
        gaps = np.minimum(gaps, (best.values[:, 0] - best.values[:, 1]).numpy())
        keep = np.flatnonzero((gaps >= MIN_GREEDY_GAP) & (margins.worst >= bound))
        history = np.concatenate([history, best.indices[:, :1].numpy()], axis=1)[keep]
        gaps = gaps[keep]
        cache.batch_select_indices(torch.from_numpy(keep))
    return [(row[0], row[1:], gap) for row, gap in zip(history, gaps)]


def find_prompt(config, model, margins, length, rng):
    """Returns (prompt, its logits, continuation, greedy gap) of the candidate with the widest greedy gap among those
    within all bounds."""
    for attempt in range(MAX_ATTEMPTS):
        ids, cache = grow_prompt(config, model, margins, length - 1, rng)
        last_tokens = rng.choice(np.arange(2, config["vocab_size"]), size=CANDIDATES, replace=False)
        found = [candidate for candidate in continue_greedily(config, model, cache, last_tokens, margins)
                 if len(set(candidate[1])) >= MIN_DISTINCT_TOKENS]
        print(f"  length {length} attempt {attempt}: {len(found)} good", flush=True)
        if found:
            last, tokens, gap = max(found, key=lambda candidate: candidate[2])
            prompt = np.array(ids + [last])
            margins.reset(1)
            with torch.no_grad():
                logits = model(torch.from_numpy(prompt[None])).logits[0].numpy()
            return prompt, logits, tokens, gap
    raise AssertionError(f"no prompt of {length} tokens satisfies the bounds")


def make_golden(name, seed, output):
    config, bias = configs.GOLDENS[name]
    options = random_weights.Options(seed=seed, num_hidden_layers=config["num_hidden_layers"],
                                     gate_bias_amplitude=bias)
    weights, checksum = make_weights(config, options)
    model = load_model(config, weights)
    margins = RoutingMargins(config, model)
    exact = {key: value.astype(np.float64) for key, value in weights.items()}
    rng = np.random.default_rng(seed)
    cases, tensors = [], {}
    for i, length in enumerate(PROMPT_LENGTHS):
        prompt, logits, tokens, gap = find_prompt(config, model, margins, length, rng)
        # The continuation is checked with the reference too: one pass over prompt and answer gives both.
        trace = []
        expected = reference.forward(config, exact, np.concatenate([prompt, tokens[:-1]]), trace)
        error = np.linalg.norm(logits - expected[:length]) / np.linalg.norm(expected[:length])
        assert error <= MAX_DISAGREEMENT, f"{name}: transformers differs from the reference by {error:.2e}"
        assert (expected[length - 1:].argmax(axis=1) == tokens).all(), f"{name}: continuations differ"
        margin = min(entry[3] for entry in trace)
        assert margin >= 0.99 * MIN_ROUTING_MARGIN[config["scoring_func"]], f"{name}: routing margin {margin:.1e}"
        print(f"{name} length {length}: {len(set(tokens))} distinct tokens, gap {gap:.3f} margin {margin:.1e} "
              f"error {error:.1e}", flush=True)
        cases.append({"input_ids": prompt.tolist(), "greedy_ids": tokens.tolist(), "greedy_gap": round(float(gap), 4),
                      "routing_margin": float(f"{margin:.3g}"), "reference_error": float(f"{error:.2g}")})
        tensors[f"logits.{i}"] = np.ascontiguousarray(logits, dtype=np.float32)
    directory = output / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    golden = {"seed": seed, "gate_bias_amplitude": bias, "weights_checksum": f"{checksum:016x}",
              "made_with": f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"}
    text = json.dumps(golden, indent=2)[:-2] + ',\n  "cases": [\n    '
    text += ",\n    ".join(json.dumps(case) for case in cases) + "\n  ]\n}\n"
    (directory / "golden.json").write_text(text)
    save_file(tensors, directory / "logits.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(configs.GOLDENS), default=list(configs.GOLDENS))
    parser.add_argument("--output", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "tests/model/goldens")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.only:
        start = time.time()
        make_golden(name, 1 + list(configs.GOLDENS).index(name), args.output)
        print(f"{name}: {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
