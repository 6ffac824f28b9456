"""Makes tests/model/goldens/: logits and greedy continuations of small random models by Hugging Face transformers
in float32, checked against reference.py in float64. See README.md for the files and the bounds.

    python make_goldens.py [--only NAME …] [--output DIR]
"""

import argparse
import copy
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
NEW_TOKENS_WITH_INDEXER = 16  # fewer, because every token needs one more margin in every layer
CANDIDATES = 48  # last tokens tried for one prompt
MAX_ATTEMPTS = 500
REDRAWN_TOKENS = 16  # at the end of a prompt for which no candidate was good
MIN_GREEDY_GAP = 0.04  # between the two best logits at each generated token; logits have a deviation of 1
# The choice of experts must survive bf16's errors: in gate logits for softmax, in scores for sigmoid.
MIN_ROUTING_MARGIN = {"softmax": 4e-3, "sigmoid": 1e-3}
# The least margin of V3.2's choice of keys, as a share of the row's spread of scores. Errors of float32 do not change a
# choice with this margin.
MIN_SELECTION_MARGIN = 1e-4
MIN_DISTINCT_SHARE = 1 / 4  # of a continuation's tokens, because models this small often repeat short loops
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


class Margins:
    """Keeps the smallest margins, since reset(), of the choice of experts and of V3.2's choice of keys over all layers and
    positions of each sequence. A margin is a multiple of the required one."""

    def __init__(self, config, model):
        self.config, self.worst = config, None
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(self.routing_hook)
            if name.endswith("self_attn.indexer"):
                module.register_forward_hook(self.selection_hook, with_kwargs=True)

    def reset(self, batch):
        self.worst = np.full(batch, np.inf)

    def keep(self, margins, bound):
        self.worst = np.minimum(self.worst, margins.reshape(len(self.worst), -1).amin(dim=1).numpy() / bound)

    def routing_hook(self, module, inputs, output):
        bias = getattr(module, "e_score_correction_bias", None)
        margins = routing_margins(self.config, output[0].double(), 0.0 if bias is None else bias.double())
        self.keep(margins, MIN_ROUTING_MARGIN[self.config["scoring_func"]])

    def selection_hook(self, module, inputs, kwargs, output):
        """Computes the scores of the last row again; the keys up to it are in the cache."""
        cache, topk = kwargs["past_key_values"], self.config["index_topk"]
        hidden, q_latent, (cos, sin) = inputs[:3]
        if cache is None or hidden.shape[1] != 1:
            return  # a whole prompt, whose tokens have been checked one by one
        keys = cache.layers[module.layer_idx].indexer_keys
        if keys.shape[1] <= topk:
            return
        half = self.config["qk_rope_head_dim"] // 2
        q = module.wq_b(q_latent).view(len(hidden), module.n_heads, -1)
        cos, sin = cos[:, :, :half], sin[:, :, :half]
        low, high = q[..., :half], q[..., half:2 * half]
        q = torch.cat([low * cos - high * sin, high * cos + low * sin, q[..., 2 * half:]], dim=-1)
        scores = torch.einsum("bhs,bh->bs", torch.einsum("bhd,bsd->bhs", q, keys).relu(),
                              module.weights_proj(hidden)[:, 0])
        best = scores.topk(topk + 1, dim=-1).values
        self.keep((best[:, -2] - best[:, -1]) / (scores.amax(-1) - scores.amin(-1)), MIN_SELECTION_MARGIN)


def num_new_tokens(config):
    return NEW_TOKENS_WITH_INDEXER if config.get("index_topk") else NEW_TOKENS


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
def grow_prompt(config, model, margins, length, rng, ids, cache):
    """Extends random ids and their cache to a length. Every position has the required margins of routing and selection; a
    token without them is drawn again."""
    while len(ids) < length:
        token = int(rng.integers(2, config["vocab_size"]))
        margins.reset(1)
        model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        if margins.worst[0] < 1.0:
            cache.crop(-1)
        else:
            ids.append(token)


@torch.no_grad()
def continue_greedily(config, model, cache, last_tokens, margins):
    """Continues one cached sequence by each of last_tokens, then greedily. Candidates that violate a bound are dropped on
    the way. Returns [(last token, continuation, smallest gap of the two best logits)]."""
    cache.batch_repeat_interleave(len(last_tokens))
    history, gaps = last_tokens[:, None], np.full(len(last_tokens), np.inf)
    while len(history) and history.shape[1] <= num_new_tokens(config):
        margins.reset(len(history))
        step = model(torch.from_numpy(history[:, -1:]), past_key_values=cache, use_cache=True).logits[:, -1]
        best = step.topk(2, dim=-1)
        gaps = np.minimum(gaps, (best.values[:, 0] - best.values[:, 1]).numpy())
        keep = np.flatnonzero((gaps >= MIN_GREEDY_GAP) & (margins.worst >= 1.0))
        history = np.concatenate([history, best.indices[:, :1].numpy()], axis=1)[keep]
        gaps = gaps[keep]
        cache.batch_select_indices(torch.from_numpy(keep))
    return [(row[0], row[1:], gap) for row, gap in zip(history, gaps)]


def find_prompt(config, model, margins, length, rng):
    """Returns (prompt, its logits, continuation, greedy gap) of the candidate with the widest greedy gap among those
    within all bounds."""
    ids, cache = [], transformers.DynamicCache(config=model.config)
    for attempt in range(MAX_ATTEMPTS):
        grow_prompt(config, model, margins, length - 1, rng, ids, cache)
        last_tokens = rng.choice(np.arange(2, config["vocab_size"]), size=CANDIDATES, replace=False)
        found = [candidate for candidate in continue_greedily(config, model, copy.deepcopy(cache), last_tokens, margins)
                 if len(set(candidate[1])) >= num_new_tokens(config) * MIN_DISTINCT_SHARE]
        print(f"  length {length} attempt {attempt}: {len(found)} good", flush=True)
        if found:
            last, tokens, gap = max(found, key=lambda candidate: candidate[2])
            prompt = np.array(ids + [last])
            margins.reset(1)
            with torch.no_grad():
                logits = model(torch.from_numpy(prompt[None]), use_cache=False).logits[0].numpy()
            return prompt, logits, tokens, gap
        redrawn = min(REDRAWN_TOKENS, len(ids))
        cache.crop(-redrawn)
        del ids[len(ids) - redrawn:]
    raise AssertionError(f"no prompt of {length} tokens satisfies the bounds")


def make_golden(name, seed, output):
    config, bias = configs.GOLDENS[name]
    options = random_weights.Options(seed=seed, num_hidden_layers=config["num_hidden_layers"], gate_bias_amplitude=bias,
                                     ue8m0_scales=config.get("quantization_config", {}).get("scale_fmt") == "ue8m0")
    weights, checksum = make_weights(config, options)
    model = load_model(config, weights)
    margins = Margins(config, model)
    exact = {key: value.astype(np.float64) for key, value in weights.items()}
    rng = np.random.default_rng(seed)
    cases, tensors = [], {}
    for i, length in enumerate(PROMPT_LENGTHS):
        prompt, logits, tokens, gap = find_prompt(config, model, margins, length, rng)
        # The continuation is checked with the reference too: one pass over prompt and answer gives both.
        trace, selections = [], []
        expected = reference.forward(config, exact, np.concatenate([prompt, tokens[:-1]]), trace, selections)
        error = np.linalg.norm(logits - expected[:length]) / np.linalg.norm(expected[:length])
        assert error <= MAX_DISAGREEMENT, f"{name}: transformers differs from the reference by {error:.2e}"
        assert (expected[length - 1:].argmax(axis=1) == tokens).all(), f"{name}: continuations differ"
        margin = min(entry[3] for entry in trace)
        assert margin >= 0.99 * MIN_ROUTING_MARGIN[config["scoring_func"]], f"{name}: routing margin {margin:.1e}"
        selection = min((entry[2] for entry in selections), default=None)
        assert selection is None or selection >= 0.99 * MIN_SELECTION_MARGIN, f"{name}: selection margin {selection:.1e}"
        print(f"{name} length {length}: {len(set(tokens))} distinct tokens, gap {gap:.3f} margin {margin:.1e} "
              f"error {error:.1e}", flush=True)
        cases.append({"input_ids": prompt.tolist(), "greedy_ids": tokens.tolist(), "greedy_gap": round(float(gap), 4),
                      "routing_margin": float(f"{margin:.3g}"),
                      **({} if selection is None else {"selection_margin": float(f"{selection:.3g}")}),
                      "reference_error": float(f"{error:.2g}")})
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
