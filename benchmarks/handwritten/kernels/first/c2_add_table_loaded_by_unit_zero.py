import torch


def reference(x, p):
    return x + p.repeat(x.shape[0] // 64 + 1, 1)[: x.shape[0]]
