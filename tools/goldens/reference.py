"""Computes the DeepSeek V2, V3 and V3.2 forward pass in float64 numpy, written from the papers' formulas and nothing else.

The papers are DeepSeek-V2 (arXiv 2405.04434, section 2.1 MLA and 2.2 DeepSeekMoE), DeepSeek-V3 (arXiv 2412.19437, section
2.1), DeepSeek-V3.2-Exp (its sparse attention) and YaRN (arXiv 2309.00071). The results of the library that makes the goldens
are compared with this reference. It is slow and plain: it has one sequence, no cache and no batching.
"""

import math

import numpy as np


def is_moe_layer(config, layer):
    return (config["n_routed_experts"] and layer >= config["first_k_dense_replace"]
            and layer % config.get("moe_layer_freq", 1) == 0)


def tensor_specs(config, nextn=False):
    """Returns [(name, shape, dtype)] of the checkpoint, with the NextN layer (without copies of embedding and head) if
    `nextn`."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    v_dim, latent, q_rank = config["v_head_dim"], config["kv_lora_rank"], config["q_lora_rank"]
    fp8 = config.get("quantization_config") is not None
    specs = []

    def plain(name, *shape, dtype="BF16"):
        specs.append((name, shape, dtype))

    def linear(name, rows, cols):
        if fp8:
            plain(name + ".weight", rows, cols, dtype="F8_E4M3")
            plain(name + ".weight_scale_inv", -(-rows // 128), -(-cols // 128), dtype="F32")
        else:
            plain(name + ".weight", rows, cols)

    def mlp(prefix, width):
        linear(prefix + ".gate_proj", width, hidden)
        linear(prefix + ".up_proj", width, hidden)
        linear(prefix + ".down_proj", hidden, width)

    plain("model.embed_tokens.weight", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"] + nextn):
        base = f"model.layers.{layer}"
        attention = base + ".self_attn"
        plain(base + ".input_layernorm.weight", hidden)
        if q_rank:
            linear(attention + ".q_a_proj", q_rank, hidden)
            plain(attention + ".q_a_layernorm.weight", q_rank)
            linear(attention + ".q_b_proj", heads * (nope + rope), q_rank)
        else:
            linear(attention + ".q_proj", heads * (nope + rope), hidden)
        if config.get("index_topk"):
            indexer, index_heads, index_dim = attention + ".indexer", config["index_n_heads"], config["index_head_dim"]
            linear(indexer + ".wq_b", index_heads * index_dim, q_rank)
            linear(indexer + ".wk", index_dim, hidden)
            plain(indexer + ".k_norm.weight", index_dim)
            plain(indexer + ".k_norm.bias", index_dim)
            plain(indexer + ".weights_proj.weight", index_heads, hidden)
        linear(attention + ".kv_a_proj_with_mqa", latent + rope, hidden)
        plain(attention + ".kv_a_layernorm.weight", latent)
        linear(attention + ".kv_b_proj", heads * (nope + v_dim), latent)
        linear(attention + ".o_proj", hidden, heads * v_dim)
        plain(base + ".post_attention_layernorm.weight", hidden)
        if not is_moe_layer(config, layer):
            mlp(base + ".mlp", config["intermediate_size"])
            continue
        plain(base + ".mlp.gate.weight", config["n_routed_experts"], hidden)
        if config["topk_method"] == "noaux_tc":
            plain(base + ".mlp.gate.e_score_correction_bias", config["n_routed_experts"], dtype="F32")
        for expert in range(config["n_routed_experts"]):
            mlp(f"{base}.mlp.experts.{expert}", config["moe_intermediate_size"])
        mlp(base + ".mlp.shared_experts", config["moe_intermediate_size"] * config["n_shared_experts"])
    if nextn:
        base = f"model.layers.{config['num_hidden_layers']}"
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            plain(f"{base}.{norm}.weight", hidden)
        plain(base + ".eh_proj.weight", hidden, 2 * hidden)
    plain("model.norm.weight", hidden)
    plain("lm_head.weight", config["vocab_size"], hidden)
    return specs


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1.0 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def yarn_m(factor, mscale):
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rope_table(config, num_positions):
    """Returns cos and sin [positions, rope/2], multiplied by the YaRN ratio of mscales."""
    dim, theta = config["qk_rope_head_dim"], config["rope_theta"]
    frequency = theta ** (-np.arange(0, dim, 2) / dim)
    ratio = 1.0
    scaling = config.get("rope_scaling")
    if scaling:
        original = scaling["original_max_position_embeddings"]

        def correction_dim(rotations):
            return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(correction_dim(scaling["beta_fast"])), 0)
        high = min(math.ceil(correction_dim(scaling["beta_slow"])), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
        frequency = frequency * (1 - ramp) + frequency / scaling["factor"] * ramp
        ratio = yarn_m(scaling["factor"], scaling["mscale"]) / yarn_m(scaling["factor"], scaling["mscale_all_dim"])
    angles = np.arange(num_positions)[:, None] * frequency[None, :]
    return np.cos(angles) * ratio, np.sin(angles) * ratio


def rotate_pairs(x, cos, sin):
    """Rotates the pairs (2i, 2i+1) of x [tokens, ..., rope] by the angle of pair i."""
    shape = (x.shape[0],) + (1,) * (x.ndim - 2) + (cos.shape[1],)
    cos, sin = cos.reshape(shape), sin.reshape(shape)
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * cos - odd * sin
    out[..., 1::2] = even * sin + odd * cos
    return out


def rotate_halves(x, cos, sin):
    """Rotates the pairs (i, i + rope/2) of the first `rope` values of x [tokens, ..., dim] by the angle of pair i; the others
    stay as they are."""
    half = cos.shape[1]
    shape = (x.shape[0],) + (1,) * (x.ndim - 2) + (half,)
    cos, sin = cos.reshape(shape), sin.reshape(shape)
    low, high = x[..., :half], x[..., half:2 * half]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, x[..., 2 * half:]], axis=-1)


def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps) * weight + bias


def select_keys(config, w, prefix, x, q_latent, cos, sin, selections):
    """Returns bool [tokens, tokens]: which keys each token attends to by V3.2's indexer. A row of at most index_topk keys
    attends to all of them. For every other row (prefix, token, margin) is appended to `selections`; the margin is the
    difference between the worst chosen score and the best other one, as a share of the row's spread of scores.

    The Hadamard transform of queries and keys is left out, because it keeps their products."""
    tokens, heads, dim, topk = x.shape[0], config["index_n_heads"], config["index_head_dim"], config["index_topk"]
    chosen = np.tril(np.ones((tokens, tokens), dtype=bool))
    if tokens <= topk:
        return chosen
    q = rotate_halves((q_latent @ w[prefix + ".wq_b.weight"].T).reshape(tokens, heads, dim), cos, sin)
    k = layer_norm(x @ w[prefix + ".wk.weight"].T, w[prefix + ".k_norm.weight"], w[prefix + ".k_norm.bias"], 1e-6)
    k = rotate_halves(k, cos, sin)
    head_weights = x @ w[prefix + ".weights_proj.weight"].T * (heads * dim) ** -0.5
    scores = np.einsum("ths,th->ts", np.maximum(np.einsum("thd,sd->ths", q, k), 0.0), head_weights)
    for token in range(topk, tokens):
        row = scores[token, :token + 1]
        order = largest(row, len(row))
        chosen[token, order[topk:]] = False
        selections.append((prefix, token, (row[order[topk - 1]] - row[order[topk]]) / (row.max() - row.min())))
    return chosen


def attention(config, w, prefix, x, selections):
    tokens, heads = x.shape[0], config["num_attention_heads"]
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    v_dim, latent, eps = config["v_head_dim"], config["kv_lora_rank"], config["rms_norm_eps"]
    if config["q_lora_rank"]:
        q_latent = rms_norm(x @ w[prefix + ".q_a_proj.weight"].T, w[prefix + ".q_a_layernorm.weight"], eps)
        q = q_latent @ w[prefix + ".q_b_proj.weight"].T
    else:
        q = x @ w[prefix + ".q_proj.weight"].T
    q = q.reshape(tokens, heads, nope + rope)
    kv_a = x @ w[prefix + ".kv_a_proj_with_mqa.weight"].T
    c_kv = rms_norm(kv_a[:, :latent], w[prefix + ".kv_a_layernorm.weight"], eps)
    kv = (c_kv @ w[prefix + ".kv_b_proj.weight"].T).reshape(tokens, heads, nope + v_dim)
    cos, sin = rope_table(config, tokens)
    q_rope = rotate_pairs(q[..., nope:], cos, sin)
    k_rope = rotate_pairs(kv_a[:, latent:], cos, sin)

    scale = (nope + rope) ** -0.5
    scaling = config.get("rope_scaling")
    if scaling and scaling.get("mscale_all_dim"):
        scale *= yarn_m(scaling["factor"], scaling["mscale_all_dim"]) ** 2
    scores = np.einsum("thd,shd->hts", q[..., :nope], kv[..., :nope]) + np.einsum("thd,sd->hts", q_rope, k_rope)
    visible = np.tril(np.ones((tokens, tokens), dtype=bool))
    if config.get("index_topk"):
        visible = select_keys(config, w, prefix + ".indexer", x, q_latent, cos, sin, selections)
    weights = softmax(np.where(visible, scores * scale, -np.inf))
    out = np.einsum("hts,shd->thd", weights, kv[..., nope:]).reshape(tokens, heads * v_dim)
    return out @ w[prefix + ".o_proj.weight"].T


def mlp(w, prefix, x):
    hidden = silu(x @ w[prefix + ".gate_proj.weight"].T) * (x @ w[prefix + ".up_proj.weight"].T)
    return hidden @ w[prefix + ".down_proj.weight"].T


def largest(values, count):
    return np.argsort(-values, kind="stable")[:count]


def select_experts(config, logits, bias):
    """Returns (experts, weights, margin) of one token. The margin is the difference by which the choice was made, in gate
    logits for softmax gates and in biased sigmoid scores for sigmoid gates. It is the smaller of the margins of groups and
    of experts."""
    groups, top_k = config["n_group"], config["num_experts_per_tok"]
    sigmoid = config["scoring_func"] == "sigmoid"
    scores = 1.0 / (1.0 + np.exp(-logits)) if sigmoid else softmax(logits)
    choice = scores + bias if sigmoid else logits
    margin = math.inf
    if config["topk_method"] != "greedy" and groups > 1:
        grouped = choice.reshape(groups, -1)
        group_scores = np.sort(grouped, axis=1)[:, -2:].sum(axis=1) if sigmoid else grouped.max(axis=1)
        order = largest(group_scores, groups)
        kept = order[:config["topk_group"]]
        if len(kept) < groups:
            margin = group_scores[kept[-1]] - group_scores[order[len(kept)]]
        mask = np.zeros(groups, dtype=bool)
        mask[kept] = True
        choice = np.where(np.repeat(mask, grouped.shape[1]), choice, -np.inf)
    order = largest(choice, len(choice))
    experts = order[:top_k]
    if top_k < len(choice):
        margin = min(margin, choice[order[top_k - 1]] - choice[order[top_k]])
    weights = scores[experts]
    if config["norm_topk_prob"]:
        weights = weights / (weights.sum() + 1e-20)
    return experts, weights * config["routed_scaling_factor"], margin


def moe(config, w, prefix, x, trace):
    logits = x @ w[prefix + ".gate.weight"].T
    bias = w.get(prefix + ".gate.e_score_correction_bias", 0.0)
    out = mlp(w, prefix + ".shared_experts", x)
    for token in range(x.shape[0]):
        experts, weights, margin = select_experts(config, logits[token], bias)
        trace.append((prefix, token, experts, margin))
        for expert, weight in zip(experts, weights):
            out[token] += weight * mlp(w, f"{prefix}.experts.{expert}", x[token])
    return out


def decoder_layer(config, w, layer, h, trace, selections):
    base, eps = f"model.layers.{layer}", config["rms_norm_eps"]
    x = rms_norm(h, w[base + ".input_layernorm.weight"], eps)
    h = h + attention(config, w, base + ".self_attn", x, selections)
    x = rms_norm(h, w[base + ".post_attention_layernorm.weight"], eps)
    return h + (moe(config, w, base + ".mlp", x, trace) if is_moe_layer(config, layer) else mlp(w, base + ".mlp", x))


def hidden_states(config, w, ids, trace, selections):
    """Returns the hidden states after the final norm [tokens, hidden]."""
    h = w["model.embed_tokens.weight"][np.asarray(ids)]
    for layer in range(config["num_hidden_layers"]):
        h = decoder_layer(config, w, layer, h, trace, selections)
    return rms_norm(h, w["model.norm.weight"], config["rms_norm_eps"])


def forward(config, w, ids, trace=None, selections=None):
    """Returns logits [tokens, vocab]. `w` maps a name to a float64 array (FP8 weights are dequantised)."""
    trace = [] if trace is None else trace
    selections = [] if selections is None else selections
    return hidden_states(config, w, ids, trace, selections) @ w["lm_head.weight"].T


def forward_nextn(config, w, ids, trace, selections):
    """Returns NextN's logits [tokens - 1, vocab]: row t depends on tokens up to t + 1 and predicts token t + 2 (DeepSeek-V3,
    section 2.2). The margins of all layers, the NextN layer included, are added to `trace` and `selections`."""
    base, eps = f"model.layers.{config['num_hidden_layers']}", config["rms_norm_eps"]
    h = hidden_states(config, w, ids, trace, selections)[:-1]
    following = w["model.embed_tokens.weight"][np.asarray(ids)[1:]]
    joined = np.concatenate([rms_norm(following, w[base + ".enorm.weight"], eps),
                             rms_norm(h, w[base + ".hnorm.weight"], eps)], axis=-1)
    x = decoder_layer(config, w, config["num_hidden_layers"], joined @ w[base + ".eh_proj.weight"].T, trace, selections)
    return rms_norm(x, w[base + ".shared_head.norm.weight"], eps) @ w["lm_head.weight"].T
