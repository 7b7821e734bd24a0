import torch


def reference(x, g, s, eps):
    mean = x.mean(1, keepdim=True)
    var = (x - mean).square().mean(1, keepdim=True)
    return {"Y": torch.nn.functional.silu((x - mean) * (var + eps).rsqrt() * g[:, None] + s[:, None])}
