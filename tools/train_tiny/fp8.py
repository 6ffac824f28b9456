"""Quantises to float8 e4m3 with one scale per 128 x 128 block.

Scales are powers of two, so code times scale is exact in bfloat16. Therefore training with the rounded weights in bfloat16
uses exactly the same numbers as inference in any wider type.
"""
import torch
import torch.nn.functional as F

BLOCK = 128
E4M3_MAX = 448.0
UNQUANTISED = ("gate", "embed_tokens", "lm_head", "eh_proj")  # by the parameter's last name; vectors are never quantised


def is_quantised(name: str, tensor) -> bool:
    return tensor.dim() == 2 and name.rsplit(".", 1)[-1] not in UNQUANTISED


def quantise(w):
    """Returns (codes float8_e4m3fn of w's shape, scales float32 [.., ceil n/128, ceil k/128]) of w float32 [n, k] or [e, n,
    k]."""
    n, k = w.shape[-2:]
    padded = F.pad(w, (0, -k % BLOCK, 0, -n % BLOCK)).unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))
    largest = padded.abs().amax((-1, -3)).clamp_min(1e-12)  # [.., n/128, k/128]
    scales = torch.exp2(torch.ceil(torch.log2(largest / E4M3_MAX)))
    codes = (padded / scales[..., :, None, :, None]).to(torch.float8_e4m3fn)
    return codes.flatten(-4, -3).flatten(-2)[..., :n, :k].contiguous(), scales


def dequantise(codes, scales):
    n, k = codes.shape[-2:]
    wide = scales.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)[..., :n, :k]
    return codes.float() * wide


def rounded(w):
    """Returns the values that quantise(w) represents."""
    return dequantise(*quantise(w))
