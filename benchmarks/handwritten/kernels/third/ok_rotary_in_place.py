import torch


def reference(x, cos, sin):
    a, b = x.chunk(2, -1)
    c, s = cos[:, None], sin[:, None]
    return {"X": torch.cat([a * c - b * s, b * c + a * s], -1)}
