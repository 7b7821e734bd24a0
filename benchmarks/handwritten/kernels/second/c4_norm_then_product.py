import torch


def reference(x, w, eps):
    return x / ((x * x).mean(-1, keepdim=True) + eps).sqrt() @ w.mT
