"""Defines the DeepSeek-V3 architecture for training: flat packed batches, all experts as one masked product.

A batch is one row of n tokens: many documents, one after the other. Parameters have the checkpoint's names with dots
replaced by double underscores, except that a layer's routed experts are stacked: `experts__gate_proj` is [E * m, d].
"""
import json
import math

import torch
import torch.nn.functional as F
from torch import nn


class Config:
    def __init__(self, path):
        self.json = json.loads(open(path).read())
        self.__dict__.update(self.json)
        self.qk_head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        self.num_all_layers = self.num_hidden_layers + self.num_nextn_predict_layers


def _matrix(rows, cols, std=None):
    return nn.Parameter(torch.randn(rows, cols) * (std if std is not None else cols**-0.5))


def rms_norm(x, weight, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def rope(x, cos, sin):
    """Rotates the pairs (2i, 2i+1) of x [n, h, 64]; cos, sin float32 [n, 1, 32]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def rope_tables(positions, cfg):
    half = cfg.qk_rope_head_dim // 2
    inverse = cfg.rope_theta ** (-torch.arange(half, device=positions.device, dtype=torch.float64) / half)
    angles = (positions.double()[:, None, None] * inverse).float()
    return angles.cos(), angles.sin()


def causal_attention(q, k, v, starts, max_length):
    """Returns the attention of q, k [n, h, 192] and v [n, h, 128]; each document [starts[i], starts[i+1]) attends to itself
    only."""
    if q.is_cuda:
        padded = F.pad(v, (0, q.shape[-1] - v.shape[-1]))
        out = torch.ops.aten._flash_attention_forward(q, k, padded, starts, starts, max_length, max_length, 0.0, True, False,
                                                      scale=q.shape[-1] ** -0.5)[0]
        return out[..., :v.shape[-1]]
    n = q.shape[0]
    index = torch.arange(n, device=q.device)
    document = torch.searchsorted(starts, index.to(starts.dtype), right=True)
    mask = (document[:, None] == document[None]) & (index[:, None] >= index[None])
    out = F.scaled_dot_product_attention(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), attn_mask=mask)
    return out.transpose(0, 1)


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, h, d = cfg, cfg.num_attention_heads, cfg.hidden_size
        self.q_a_proj = _matrix(cfg.q_lora_rank, d)
        self.q_a_layernorm = nn.Parameter(torch.ones(cfg.q_lora_rank))
        self.q_b_proj = _matrix(h * cfg.qk_head_dim, cfg.q_lora_rank)
        self.kv_a_proj_with_mqa = _matrix(cfg.kv_lora_rank + cfg.qk_rope_head_dim, d)
        self.kv_a_layernorm = nn.Parameter(torch.ones(cfg.kv_lora_rank))
        self.kv_b_proj = _matrix(h * (cfg.qk_nope_head_dim + cfg.v_head_dim), cfg.kv_lora_rank)
        self.o_proj = _matrix(d, h * cfg.v_head_dim, std=0.3 * (h * cfg.v_head_dim) ** -0.5)

    def forward(self, x, cos, sin, starts, max_length):
        cfg, n = self.cfg, x.shape[0]
        q = rms_norm(x @ self.q_a_proj.T, self.q_a_layernorm, cfg.rms_norm_eps) @ self.q_b_proj.T
        q_nope, q_rope = q.view(n, -1, cfg.qk_head_dim).split((cfg.qk_nope_head_dim, cfg.qk_rope_head_dim), -1)
        latent, k_rope = (x @ self.kv_a_proj_with_mqa.T).split((cfg.kv_lora_rank, cfg.qk_rope_head_dim), -1)
        kv = rms_norm(latent, self.kv_a_layernorm, cfg.rms_norm_eps) @ self.kv_b_proj.T
        k_nope, v = kv.view(n, -1, cfg.qk_nope_head_dim + cfg.v_head_dim).split((cfg.qk_nope_head_dim, cfg.v_head_dim), -1)
        k_rope = rope(k_rope[:, None], cos, sin).expand(-1, q.shape[-1] // cfg.qk_head_dim, -1)
        q = torch.cat((q_nope, rope(q_rope, cos, sin)), -1)
        out = causal_attention(q, torch.cat((k_nope, k_rope), -1), v.contiguous(), starts, max_length)
        return out.reshape(n, -1) @ self.o_proj.T


def gate_weights(x, weight, bias, cfg):
    """Returns V3's gate in float32: weights [n, E], zero for experts that were not chosen, and the choice [n, E] as 0 or 1."""
    scores = torch.sigmoid(x.float() @ weight.float().T)
    biased = (scores + bias).detach()
    groups = biased.view(-1, cfg.n_group, cfg.n_routed_experts // cfg.n_group)
    best_two = _rank(groups) < 2
    group_scores = (groups * best_two).sum(-1)
    kept = (_rank(group_scores) < cfg.topk_group)[:, :, None].expand_as(groups).flatten(1)
    chosen = ((_rank(biased.masked_fill(~kept, -1e9)) < cfg.num_experts_per_tok) & kept).float()
    picked = scores * chosen
    return picked / (picked.sum(-1, keepdim=True) + 1e-20) * cfg.routed_scaling_factor, chosen


def _rank(x):
    """Counts the greater entries of the last axis; equal ones rank by index."""
    size = x.shape[-1]
    earlier = torch.ones(size, size, device=x.device, dtype=torch.bool).tril(-1)
    a, b = x.unsqueeze(-1), x.unsqueeze(-2)
    return ((b > a) | ((b == a) & earlier)).sum(-1)


class Mlp(nn.Module):
    def __init__(self, d, m):
        super().__init__()
        self.gate_proj, self.up_proj = _matrix(m, d), _matrix(m, d)
        self.down_proj = _matrix(d, m, std=0.3 * m**-0.5)

    def forward(self, x):
        return (F.silu(x @ self.gate_proj.T) * (x @ self.up_proj.T)) @ self.down_proj.T


class Moe(nn.Module):
    """Runs every expert on every token; the gate's zeros remove experts that were not chosen. With sixteen small experts this
    is efficient."""

    def __init__(self, cfg):
        super().__init__()
        d, m, e = cfg.hidden_size, cfg.moe_intermediate_size, cfg.n_routed_experts
        self.cfg = cfg
        self.gate = _matrix(e, d)
        self.register_buffer("e_score_correction_bias", torch.zeros(e))
        self.experts__gate_proj, self.experts__up_proj = _matrix(e * m, d), _matrix(e * m, d)
        self.experts__down_proj = _matrix(e * d, m, std=0.3 * m**-0.5)  # [E, d, m] flattened
        self.shared_experts = Mlp(d, m * cfg.n_shared_experts)

    def forward(self, x):
        cfg, m = self.cfg, self.cfg.moe_intermediate_size
        weights, chosen = gate_weights(x, self.gate, self.e_score_correction_bias, cfg)
        inner = F.silu(x @ self.experts__gate_proj.T) * (x @ self.experts__up_proj.T)
        inner = (inner.view(-1, cfg.n_routed_experts, m) * weights[..., None].to(x.dtype)).flatten(1)
        down = self.experts__down_proj.view(-1, cfg.hidden_size, m).transpose(0, 1).flatten(1)  # [d, E * m]
        return inner @ down.T + self.shared_experts(x), chosen.mean(0)


class Layer(nn.Module):
    def __init__(self, cfg, index):
        super().__init__()
        self.eps = cfg.rms_norm_eps
        self.input_layernorm = nn.Parameter(torch.ones(cfg.hidden_size))
        self.post_attention_layernorm = nn.Parameter(torch.ones(cfg.hidden_size))
        self.self_attn = Attention(cfg)
        self.is_moe = index >= cfg.first_k_dense_replace
        self.mlp = Moe(cfg) if self.is_moe else Mlp(cfg.hidden_size, cfg.intermediate_size)

    def forward(self, x, cos, sin, starts, max_length):
        x = x + self.self_attn(rms_norm(x, self.input_layernorm, self.eps), cos, sin, starts, max_length)
        out = self.mlp(rms_norm(x, self.post_attention_layernorm, self.eps))
        out, load = out if self.is_moe else (out, None)
        return x + out, load


class TinyModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        d = cfg.hidden_size
        self.embed_tokens = _matrix(cfg.vocab_size, d, std=0.02 * math.sqrt(d) / 4)
        self.layers = nn.ModuleList(Layer(cfg, i) for i in range(cfg.num_all_layers))  # the last one is the MTP layer
        self.norm = nn.Parameter(torch.ones(d))
        self.lm_head = _matrix(cfg.vocab_size, d, std=0.02)
        self.enorm, self.hnorm = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.eh_proj = _matrix(d, 2 * d)
        self.shared_head_norm = nn.Parameter(torch.ones(d))

    def forward(self, tokens, positions, starts, max_length):
        """Returns, for tokens i64[n], the logits of the next token [n, V], NextN's logits of the token after the next one
        [n, V], and the loads per MoE layer."""
        cfg, eps = self.cfg, self.cfg.rms_norm_eps
        cos, sin = rope_tables(positions, cfg)
        embedded = F.embedding(tokens, self.embed_tokens)
        x, loads = embedded, []
        for layer in self.layers[:cfg.num_hidden_layers]:
            x, load = layer(x, cos, sin, starts, max_length)
            if load is not None:
                loads.append(load)
        h = rms_norm(x, self.norm, eps)
        following = torch.roll(embedded, -1, 0)
        x = torch.cat((rms_norm(following, self.enorm, eps), rms_norm(h, self.hnorm, eps)), -1) @ self.eh_proj.T
        x, load = self.layers[-1](x, cos, sin, starts, max_length)
        loads.append(load)
        draft = rms_norm(x, self.shared_head_norm, eps)
        return h @ self.lm_head.T, draft @ self.lm_head.T, torch.stack(loads)

    def gates(self):
        return [layer.mlp for layer in self.layers if layer.is_moe]
