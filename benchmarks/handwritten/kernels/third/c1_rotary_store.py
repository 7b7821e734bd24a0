import torch


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def reference(q, k, cos, sin):
    return {"QR": rotate(q, cos, sin), "KR": rotate(k, cos, sin)}
