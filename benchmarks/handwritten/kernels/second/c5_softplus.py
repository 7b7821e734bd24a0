import torch


def reference(x):
    return torch.logaddexp(x, torch.zeros_like(x))
