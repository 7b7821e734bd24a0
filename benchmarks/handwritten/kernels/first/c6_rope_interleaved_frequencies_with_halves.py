import torch


def inputs(sizes, generator):
    angle = torch.arange(sizes["M"])[:, None] * 10000.0 ** (-torch.arange(32) / 32)
    return {"cs": angle.cos(), "sn": angle.sin()}


def reference(x, cs, sn):
    a, b = x[..., :32], x[..., 32:]
    c, s = cs.to(x.dtype), sn.to(x.dtype)
    return torch.cat([a * c - b * s, b * c + a * s], -1)
