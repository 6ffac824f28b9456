"""Decodes an exported checkpoint greedily in float32, batched, with a latent KV cache. It is the scoring reference.

The cache holds the normalised latent (512 values) and the rotated key part (64 values) of every token, as an engine's cache
does. `kv` chooses whether they are rounded to bfloat16 or kept in float32. Attention is absorbed.
"""
import torch
import torch.nn.functional as F

from model import gate_weights, rms_norm, rope, rope_tables


class Decoder:
    def __init__(self, weights: dict, cfg, device, kv: str):
        """`weights` maps checkpoint names to float32 tensors (export.load_dequantised); `kv` is "float32" or "bfloat16"."""
        if kv not in ("float32", "bfloat16"):
            raise ValueError(f"kv is {kv!r}; allowed are float32 and bfloat16")
        self.w = {k: v.to(device, torch.float32) for k, v in weights.items()}
        self.cfg, self.device, self.kv = cfg, device, kv
        for i in range(cfg.first_k_dense_replace, cfg.num_hidden_layers):
            for proj in ("gate_proj", "up_proj", "down_proj"):
                names = [f"model.layers.{i}.mlp.experts.{e}.{proj}.weight" for e in range(cfg.n_routed_experts)]
                self.w[f"{i}.{proj}"] = torch.cat([self.w[n] for n in names], 1 if proj == "down_proj" else 0)

    def _round(self, x):
        return x.to(torch.bfloat16).float() if self.kv == "bfloat16" else x

    def new_cache(self, batch, length):
        cfg = self.cfg
        return [torch.zeros(batch, length, cfg.kv_lora_rank + cfg.qk_rope_head_dim, device=self.device)
                for _ in range(cfg.num_hidden_layers)]

    def _attention(self, x, i, positions, tables, cache, mask):
        cfg, w, p = self.cfg, self.w, f"model.layers.{i}.self_attn."
        b, t, _ = x.shape
        h, nope, r, c = cfg.num_attention_heads, cfg.qk_nope_head_dim, cfg.qk_rope_head_dim, cfg.kv_lora_rank
        q = rms_norm(x @ w[p + "q_a_proj.weight"].T, w[p + "q_a_layernorm.weight"], cfg.rms_norm_eps) @ w[p + "q_b_proj.weight"].T
        q_nope, q_rope = q.view(b * t, h, nope + r).split((nope, r), -1)
        latent, k_rope = (x @ w[p + "kv_a_proj_with_mqa.weight"].T).split((c, r), -1)
        latent = rms_norm(latent, w[p + "kv_a_layernorm.weight"], cfg.rms_norm_eps)
        k_rope = rope(k_rope.reshape(b * t, 1, r), *tables).view(b, t, r)
        row = self._round(torch.cat((latent, k_rope), -1))
        cache.scatter_(1, positions[..., None].expand(-1, -1, c + r), row)
        kv_b = w[p + "kv_b_proj.weight"].view(h, nope + cfg.v_head_dim, c)
        q_latent = torch.einsum("nhd,hdc->nhc", q_nope, kv_b[:, :nope])
        queries = torch.cat((q_latent, rope(q_rope, *tables)), -1).view(b, t * h, c + r)
        keys = cache[:, :mask.shape[-1]]
        scores = (queries @ keys.mT).view(b, t, h, -1) * cfg.qk_head_dim**-0.5
        probabilities = scores.masked_fill(~mask[:, :, None], float("-inf")).softmax(-1)
        mixed = (probabilities.view(b, t * h, -1) @ keys[..., :c]).view(b * t, h, c)
        return torch.einsum("nhc,hdc->nhd", mixed, kv_b[:, nope:]).reshape(b, t, -1) @ w[p + "o_proj.weight"].T

    def _mlp(self, x, prefix):
        w = self.w
        gate, up, down = (w[f"{prefix}{n}_proj.weight"] for n in ("gate", "up", "down"))
        return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T

    def _feed_forward(self, x, i):
        cfg, w, p = self.cfg, self.w, f"model.layers.{i}.mlp."
        if i < cfg.first_k_dense_replace:
            return self._mlp(x, p)
        flat = x.flatten(0, 1)
        weights, _ = gate_weights(flat, w[p + "gate.weight"], w[p + "gate.e_score_correction_bias"], cfg)
        inner = F.silu(flat @ w[f"{i}.gate_proj"].T) * (flat @ w[f"{i}.up_proj"].T)
        inner = (inner.view(len(flat), cfg.n_routed_experts, -1) * weights[..., None]).flatten(1)
        return (inner @ w[f"{i}.down_proj"].T).view_as(x) + self._mlp(x, p + "shared_experts.")

    @torch.no_grad()
    def forward(self, tokens, positions, caches, num_keys):
        """Writes the cache rows of tokens, positions i64[b, t], and returns the final hidden states [b, t, d]."""
        cfg, w = self.cfg, self.w
        tables = rope_tables(positions.flatten(), cfg)
        mask = torch.arange(num_keys, device=self.device)[None, None] <= positions[..., None]
        x = w["model.embed_tokens.weight"][tokens]
        for i in range(cfg.num_hidden_layers):
            p = f"model.layers.{i}."
            x = x + self._attention(rms_norm(x, w[p + "input_layernorm.weight"], cfg.rms_norm_eps), i, positions, tables,
                                    caches[i], mask)
            x = x + self._feed_forward(rms_norm(x, w[p + "post_attention_layernorm.weight"], cfg.rms_norm_eps), i)
        return rms_norm(x, w["model.norm.weight"], cfg.rms_norm_eps)

    def logits(self, hidden):
        return hidden @ self.w["lm_head.weight"].T

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], max_new: int, eos: int) -> list[list[int]]:
        """Returns greedy continuations without the eos token; stops each row at eos or after max_new tokens."""
        b, longest = len(prompts), max(map(len, prompts))
        lengths = torch.tensor([len(p) for p in prompts], device=self.device)
        caches = self.new_cache(b, longest + max_new)
        last = torch.empty(b, self.cfg.hidden_size, device=self.device)
        rows = max(1, 60_000_000 // (longest * longest))
        for start in range(0, b, rows):
            part = prompts[start:start + rows]
            size = max(map(len, part))
            tokens = torch.tensor([p + [0] * (size - len(p)) for p in part], device=self.device)
            positions = torch.arange(size, device=self.device).expand(len(part), -1)
            hidden = self.forward(tokens, positions, [c[start:start + rows] for c in caches], size)
            last[start:start + rows] = hidden[torch.arange(len(part)), lengths[start:start + rows] - 1]
        out, done = [], torch.zeros(b, dtype=torch.bool, device=self.device)
        for step in range(max_new):
            token = self.logits(last).argmax(-1)
            done |= token == eos
            out.append(torch.where(done, eos, token))
            if step % 8 == 0 and bool(done.all()):
                break
            if step + 1 < max_new:
                position = (lengths + step)[:, None]
                last = self.forward(token[:, None], position, caches, longest + step + 1)[:, 0]
        table = torch.stack(out, 1).tolist()
        return [row[:row.index(eos)] if eos in row else row for row in table]
