"""Measures how evenly the random weights' gates spread: distinct experts hit per MoE layer against E·(1−(1−k/E)^B).

Runs the whole depth of a published config with its own number of experts, top-k and groups, but a smaller
hidden size and smaller experts, over random tokens; prints the ratio averaged over layers for batches of B
tokens taken from different sequences (decode) and from one sequence (prefill).

    python routing_spread.py [--hidden 512] [v2-lite v2 v3 …]
"""

import argparse
import math

import numpy as np
import torch

import random_weights
import reference

# Each row has experts, top-k, groups, kept groups, gate, layers, dense layers, shared experts, scaling and
# YaRN mscale_all_dim.
MODELS = {
    "v2-lite": (64, 6, 1, 1, "greedy", 27, 1, 2, 1.0, 0.707),
    "v2": (160, 6, 8, 3, "group_limited_greedy", 60, 1, 2, 16.0, 0.707),
    "v3": (256, 8, 8, 4, "noaux_tc", 61, 3, 1, 2.5, 1.0),
}
SEQUENCES, TOKENS = 32, 16
EXPERT_WIDTH = 32


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def simulate(name, hidden, seed, layers=None):
    experts, top_k, groups, kept, method, depth, dense, shared, scaling, mscale = MODELS[name]
    depth = min(layers or depth, depth)
    sigmoid = method == "noaux_tc"
    options = random_weights.Options(seed=seed, num_hidden_layers=depth)
    config = {"n_group": groups, "num_experts_per_tok": top_k, "scoring_func": "sigmoid" if sigmoid else "softmax",
              "topk_method": method, "topk_group": kept, "norm_topk_prob": sigmoid, "routed_scaling_factor": scaling,
              "qk_rope_head_dim": 64, "rope_theta": 10000.0}
    heads = 4

    def weight(name, *shape, dtype="BF16"):
        data = random_weights.make(name, shape, dtype, options)
        return torch.from_numpy(random_weights.to_float32(data, dtype))

    def mlp(prefix, width, x):
        gate, up = weight(prefix + ".gate_proj.weight", width, hidden), weight(prefix + ".up_proj.weight", width, hidden)
        return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ weight(prefix + ".down_proj.weight", hidden, width).T

    rng = np.random.default_rng(seed)
    h = weight("model.embed_tokens.weight", 8192, hidden)[torch.from_numpy(rng.integers(0, 8192, (SEQUENCES, TOKENS)))]
    cos, sin = reference.rope_table(config, TOKENS)
    causal = torch.ones(TOKENS, TOKENS).tril().bool()
    scale = 192**-0.5 * reference.yarn_m(40, mscale) ** 2
    hits, norms = [], []
    for layer in range(depth):
        base = f"model.layers.{layer}"
        x = rms_norm(h, weight(base + ".input_layernorm.weight", hidden))
        q = (x @ weight(base + ".self_attn.q_proj.weight", heads * 192, hidden).T).view(SEQUENCES, TOKENS, heads, 192)
        kv_a = x @ weight(base + ".self_attn.kv_a_proj_with_mqa.weight", 576, hidden).T
        kv = rms_norm(kv_a[..., :512], weight(base + ".self_attn.kv_a_layernorm.weight", 512))
        kv = (kv @ weight(base + ".self_attn.kv_b_proj.weight", heads * 256, 512).T).view(SEQUENCES, TOKENS, heads, 256)
        rotate = lambda t: torch.from_numpy(np.stack([reference.rotate_pairs(s, cos, sin) for s in t.numpy()])).float()
        scores = torch.einsum("bthd,bshd->bhts", q[..., :128], kv[..., :128])
        scores = scores + torch.einsum("bthd,bsd->bhts", rotate(q[..., 128:]), rotate(kv_a[..., 512:]))
        probs = (scores * scale).masked_fill(~causal, -math.inf).softmax(-1)
        out = torch.einsum("bhts,bshd->bthd", probs, kv[..., 128:]).flatten(2)
        h = h + out @ weight(base + ".self_attn.o_proj.weight", hidden, heads * 128).T
        x = rms_norm(h, weight(base + ".post_attention_layernorm.weight", hidden))
        if layer < dense:
            h = h + mlp(base + ".mlp", 4 * hidden, x)
            continue
        flat = x.flatten(0, 1)
        logits = flat @ weight(base + ".mlp.gate.weight", experts, hidden).T
        bias = weight(base + ".mlp.gate.e_score_correction_bias", experts, dtype="F32").numpy() if sigmoid else 0.0
        mix, chosen = torch.zeros(len(flat), experts), np.zeros((len(flat), top_k), dtype=np.int64)
        for token, row in enumerate(logits.double().numpy()):
            chosen[token], weights, _ = reference.select_experts(config, row, bias)
            mix[token, chosen[token]] = torch.from_numpy(weights).float()
        out = mlp(base + ".mlp.shared_experts", EXPERT_WIDTH * shared, flat)
        for expert in range(experts):
            rows = mix[:, expert].nonzero()[:, 0]
            if len(rows):
                out[rows] += mix[rows, expert, None] * mlp(f"{base}.mlp.experts.{expert}", EXPERT_WIDTH, flat[rows])
        h = h + out.view_as(h)
        hits.append(chosen.reshape(SEQUENCES, TOKENS, top_k))
        norms.append((h.square().mean().item(), h.mean((0, 1)).square().mean().item()))
    return experts, top_k, np.stack(hits), norms


def report(name, hidden, seed, layers):
    experts, top_k, hits, norms = simulate(name, hidden, seed, layers)
    print(f"{name}: {len(hits)} MoE layers, residual energy {norms[-1][0]:.2f}, common part {norms[-1][1]:.4f}")
    num_layers = len(hits)
    # In `decode`, neighbours belong to different sequences.
    decode = hits.transpose(0, 2, 1, 3).reshape(num_layers, -1, top_k)
    prefill = hits.reshape(num_layers, -1, top_k)  # neighbours belong to one sequence
    for label, order in (("decode", decode), ("prefill", prefill)):
        for batch in (4, 16) if label == "prefill" else (4, 16, 32):
            groups = order.reshape(num_layers, -1, batch * top_k)
            distinct = np.array([[len(set(group)) for group in layer] for layer in groups]).mean(axis=1)
            expected = experts * (1 - (1 - top_k / experts) ** batch)
            ratio = distinct / expected
            print(f"  {label:7} B={batch:2}: {distinct.mean():7.2f} of {expected:7.2f} = {ratio.mean():.4f} "
                  f"(layers {ratio.min():.3f} to {ratio.max():.3f}, last {ratio[-1]:.3f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.models:
        report(name, args.hidden, args.seed, args.layers)


if __name__ == "__main__":
    main()
