import torch


def inputs(sizes, generator):
    angle = torch.arange(sizes["N"])[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    return {"cs": angle.cos(), "sn": angle.sin()}


def reference(k, cs, sn):
    x, y = k[..., :32], k[..., 32:]
    c, s = cs.to(k.dtype), sn.to(k.dtype)
    return torch.cat([x * c - y * s, y * c + x * s], -1)
