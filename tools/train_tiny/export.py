"""Writes the trained model as a Hugging Face checkpoint directory, and reads such a directory back.

The names are those of a published DeepSeek-V3 checkpoint; the NextN layer is layer `num_hidden_layers`, without copies
of the embedding and the head.
"""
import json
import pathlib

import torch
from safetensors import safe_open
from safetensors.torch import save_file

import fp8

SHARD_BYTES = 14_000_000


def checkpoint_tensors(values: dict, biases: list, cfg) -> dict:
    """Returns the checkpoint's tensors by name. `values` has a float32 tensor, not rounded yet, for each parameter's name,
    and `biases` has those of each MoE layer."""
    out = {}

    def put(name, tensor, quantised):
        if quantised:
            codes, scales = fp8.quantise(tensor)
            out[name + ".weight"], out[name + ".weight_scale_inv"] = codes, scales
        else:
            out[name + ".weight"] = tensor.to(torch.bfloat16)

    mtp = f"model.layers.{cfg.num_hidden_layers}."
    renamed = {"embed_tokens": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head", "enorm": mtp + "enorm",
               "hnorm": mtp + "hnorm", "eh_proj": mtp + "eh_proj", "shared_head_norm": mtp + "shared_head.norm"}
    for name, w in values.items():
        w = w.detach().float().cpu()
        quantised = fp8.is_quantised(name, w)
        if "experts__" in name:
            head, projection = name.rsplit(".experts__", 1)
            for e, part in enumerate(w.chunk(cfg.n_routed_experts)):
                put(f"model.{head}.experts.{e}.{projection}", part, quantised)
        else:
            put(renamed.get(name, "model." + name), w, quantised)
    moe_layers = range(cfg.first_k_dense_replace, cfg.num_all_layers)
    for layer, bias in zip(moe_layers, biases):
        out[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"] = bias.detach().float().cpu()
    return out


def _sort_key(name):
    parts = name.split(".")
    return (int(parts[2]) if parts[1] == "layers" else -1 if "embed" in name else 1000, name)


def save(tensors: dict, folder: pathlib.Path):
    folder.mkdir(parents=True, exist_ok=True)
    shards, size = [{}], 0
    for name in sorted(tensors, key=_sort_key):
        bytes_ = tensors[name].numel() * tensors[name].element_size()
        if size + bytes_ > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = tensors[name].contiguous()
        size += bytes_
    index = {"metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())}, "weight_map": {}}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, str(folder / file), metadata={"format": "pt"})
        index["weight_map"].update({name: file for name in shard})
    index["weight_map"] = dict(sorted(index["weight_map"].items()))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def load_dequantised(folder: pathlib.Path) -> dict:
    """Returns every weight of a checkpoint directory in float32, with its scales applied exactly."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    raw = {}
    for file in sorted(set(index.values())):
        with safe_open(str(folder / file), "pt") as f:
            raw.update({name: f.get_tensor(name) for name in f.keys()})
    out = {}
    for name, tensor in raw.items():
        if name.endswith("_scale_inv"):
            continue
        scales = raw.get(name + "_scale_inv")
        out[name] = fp8.dequantise(tensor, scales) if scales is not None else tensor.float()
    return out
