"""Checks on a GPU that the packed attention of training equals masked attention in float32, forward and backward.

Usage: python3 check_attention.py
"""
import torch
import torch.nn.functional as F

import corpus
from model import causal_attention


def main():
    torch.manual_seed(0)
    lengths = [5, 130, 1, 300, 76]
    n = sum(lengths)
    starts = torch.full((corpus.MAX_DOCS + 1,), n, dtype=torch.int32, device="cuda")
    starts[:len(lengths) + 1] = torch.tensor([0] + lengths).cumsum(0)
    q, k, v = (torch.randn(n, 8, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for d in (192, 192, 128))
    weight = torch.randn(n, 8, 128, device="cuda")
    out = causal_attention(q, k, v, starts, corpus.MAX_LENGTH)
    got = [out, *torch.autograd.grad((out.float() * weight).sum(), (q, k, v))]
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).cuda()
    mask = (document[:, None] == document) & torch.ones(n, n, dtype=torch.bool, device="cuda").tril()
    wide = F.scaled_dot_product_attention(*(x.float().transpose(0, 1) for x in (q, k, v)), attn_mask=mask).transpose(0, 1)
    want = [wide, *torch.autograd.grad((wide * weight).sum(), (q, k, v))]
    for name, a, b in zip(("out", "dq", "dk", "dv"), got, want):
        error = ((a.float() - b.float()).norm() / b.float().norm()).item()
        print(f"{name}: relative error {error:.2e}")
        assert error < 1e-2


if __name__ == "__main__":
    main()
