import torch


def inputs(sizes, generator, x):
    return {"X": x * 10.0 ** (-21 * (torch.arange(len(x)) % 2))[:, None]}


def reference(x):
    x = x / x.abs().amax(-1, keepdim=True).clamp(min=1e-37)
    n = (x * x).sum(-1, keepdim=True).sqrt()
    return x / torch.where(n == 0, 1.0, n)
