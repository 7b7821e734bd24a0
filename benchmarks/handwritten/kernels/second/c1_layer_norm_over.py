import torch


def reference(x, gamma, beta, eps):
    c = x - x.mean(-1, keepdim=True)
    return c / ((c * c).mean(-1, keepdim=True) + eps).sqrt() * gamma + beta
