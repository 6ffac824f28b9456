"""Trains the hidden matrices with Muon and everything else with AdamW. Each bfloat16 working weight has a float32 master.

Muon orthogonalises the momentum of each matrix with five Newton-Schulz steps (Jordan et al., 2024) and scales it by
0.2 * sqrt(max(n, k)) so that one learning rate suits both optimisers (Liu et al., 2025). Working weights are written
from the masters after each step, rounded through FP8 blocks when `quantise` is set; gradients pass straight through.
"""
import torch

import fp8


def orthogonalise(g):
    """Maps g [b, n, k] to bfloat16 matrices with singular values near one."""
    x = g.to(torch.bfloat16) if g.is_cuda else g
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if flip else x


class _Stack:
    """Holds all matrices of one shape as one tensor; the model's parameters are views into `work`."""

    def __init__(self, named, num_experts, dtype, device):
        self.named = named
        parts = [p.data.float().view(num_experts if "experts__" in n else 1, -1, p.shape[-1]) for n, p in named]
        self.master = torch.cat(parts).to(device)
        self.momentum = torch.zeros_like(self.master)
        self.work = torch.empty_like(self.master, dtype=dtype)
        self.counts = [len(p) for p in parts]
        for (_, p), view in zip(named, self.work.split(self.counts)):
            p.data = view.reshape(p.shape)

    def gradient(self):
        return torch.cat([p.grad.view(c, -1, p.shape[-1]) for (_, p), c in zip(self.named, self.counts)]).float()

    def values(self):
        return {n: m.reshape(p.shape) for (n, p), m in zip(self.named, self.master.split(self.counts))}


class Optimiser:
    def __init__(self, model, lr, weight_decay, dtype, device):
        self.lr, self.weight_decay, self.model = lr, weight_decay, model
        experts = model.cfg.n_routed_experts
        by_shape, self.others = {}, []
        for name, p in model.named_parameters():
            if fp8.is_quantised(name, p) or name == "eh_proj":
                rows = p.shape[0] // experts if "experts__" in name else p.shape[0]
                by_shape.setdefault((rows, p.shape[1], name == "eh_proj"), []).append((name, p))
            else:
                self.others.append((name, p))
        self.stacks = [_Stack(named, experts, dtype, device) for named in by_shape.values()]
        self.other_masters = [p.data.float().to(device).clone() for _, p in self.others]
        for (_, p) in self.others:
            p.data = p.data.to(device, dtype)
        for m in self.other_masters:
            m.grad = torch.zeros_like(m)
        self.adam = torch.optim.AdamW(self.other_masters, lr=lr, betas=(0.9, 0.95), weight_decay=0.0,
                                      fused=torch.device(device).type == "cuda")
        self.write_work(False)

    @torch.no_grad()
    def step(self, scale: float, quantise: bool):
        """Makes one update at learning rate lr * scale; returns the gradient norm (a tensor)."""
        lr = self.lr * scale
        gradients = [s.gradient() for s in self.stacks]
        torch._foreach_copy_([m.grad for m in self.other_masters], [p.grad for _, p in self.others])
        everything = gradients + [m.grad for m in self.other_masters]
        norm = torch.stack(torch._foreach_norm(everything)).norm()
        torch._foreach_mul_([m.grad for m in self.other_masters], (1.0 / norm.clamp_min(1.0)))
        for s, g in zip(self.stacks, gradients):
            s.momentum.lerp_(g, 0.05)
            update = orthogonalise(g.lerp(s.momentum, 0.95))
            s.master.mul_(1 - lr * self.weight_decay)
            s.master.add_(update, alpha=-lr * 0.2 * max(s.master.shape[1:]) ** 0.5)
        for group in self.adam.param_groups:
            group["lr"] = lr
        self.adam.step()
        self.write_work(quantise)
        for p in self.model.parameters():
            p.grad = None
        return norm

    @torch.no_grad()
    def write_work(self, quantise: bool):
        for s in self.stacks:
            keep = s.named[0][0] == "eh_proj" or not quantise
            s.work.copy_(s.master if keep else fp8.rounded(s.master))
        torch._foreach_copy_([p.data for _, p in self.others], self.other_masters)

    def values(self) -> dict:
        """Returns parameter name -> float32 master."""
        out = {name: m for (name, _), m in zip(self.others, self.other_masters)}
        for s in self.stacks:
            out.update(s.values())
        return out

    def state(self):
        return {"masters": [s.master for s in self.stacks], "momenta": [s.momentum for s in self.stacks],
                "others": [m.data for m in self.other_masters], "adam": self.adam.state_dict()}

    @torch.no_grad()
    def load_state(self, state):
        for s, master, momentum in zip(self.stacks, state["masters"], state["momenta"]):
            s.master.copy_(master)
            s.momentum.copy_(momentum)
        for m, value in zip(self.other_masters, state["others"]):
            m.copy_(value)
        self.adam.load_state_dict(state["adam"])
        self.write_work(False)
