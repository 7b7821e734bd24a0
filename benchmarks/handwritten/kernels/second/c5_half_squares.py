import torch


def reference(x, g, eps):
    return x / ((x * x).mean(-1, keepdim=True) + eps).sqrt() * g
