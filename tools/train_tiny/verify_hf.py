"""Checks that Hugging Face transformers, the training model and the scoring decoder agree on an exported checkpoint.

Usage: python3 verify_hf.py --model DIR
Loads the directory as DeepseekV3ForCausalLM with dequantised float32 weights and compares the logits of one prompt.
"""
import argparse
import json
import pathlib
import tempfile

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

import export
from decode import Decoder
from model import Config, TinyModel

_TEXT = "Once upon a time, there was a small fox named Mia. 48213 + 9981 = 58194\nKRTB: 17"


def load_training_model(weights, cfg):
    model = TinyModel(cfg)
    mtp = f"model.layers.{cfg.num_hidden_layers}."
    renamed = {"embed_tokens": "model.embed_tokens", "norm": "model.norm", "lm_head": "lm_head", "enorm": mtp + "enorm",
               "hnorm": mtp + "hnorm", "eh_proj": mtp + "eh_proj", "shared_head_norm": mtp + "shared_head.norm"}
    for name, p in model.named_parameters():
        if "experts__" in name:
            head, projection = name.rsplit(".experts__", 1)
            parts = [weights[f"model.{head}.experts.{e}.{projection}.weight"] for e in range(cfg.n_routed_experts)]
            p.data = torch.cat(parts)
        else:
            p.data = weights[renamed.get(name, "model." + name) + ".weight"]
    for i, gate in zip(range(cfg.first_k_dense_replace, cfg.num_all_layers), model.gates()):
        gate.e_score_correction_bias = weights[f"model.layers.{i}.mlp.gate.e_score_correction_bias"]
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    args = parser.parse_args()
    from transformers import AutoTokenizer, DeepseekV3ForCausalLM
    cfg = Config(args.model / "config.json")
    weights = export.load_dequantised(args.model)
    ids = Tokenizer.from_file(str(args.model / "tokenizer.json")).encode(_TEXT).ids
    assert AutoTokenizer.from_pretrained(args.model)(_TEXT).input_ids == ids, "transformers tokenises differently"
    tokens = torch.tensor(ids)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        config = {k: v for k, v in cfg.json.items() if k != "quantization_config"} | {"torch_dtype": "float32"}
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        save_file(weights, folder + "/model.safetensors", metadata={"format": "pt"})
        reference, info = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        print("missing:", sorted(info["missing_keys"]), "mismatched:", sorted(info["mismatched_keys"]),
              "unexpected outside the NextN layer:",
              [k for k in info["unexpected_keys"] if f"layers.{cfg.num_hidden_layers}." not in k])
        want = reference(tokens[None]).logits[0]
        decoder = Decoder(weights, cfg, "cpu", "float32")
        n = len(ids)
        hidden = decoder.forward(tokens[None], torch.arange(n)[None], decoder.new_cache(1, n), n)[0]
        starts = torch.tensor([0, n], dtype=torch.int32)
        trained = load_training_model(weights, cfg)(tokens, torch.arange(n), starts, n)[0]
        for name, got in (("decoder", decoder.logits(hidden)), ("training model", trained)):
            error = ((got - want).norm() / want.norm()).item()
            print(f"{name}: relative error of logits to transformers {error:.2e}")
            assert error < 1e-4, "the logits differ"


if __name__ == "__main__":
    main()
