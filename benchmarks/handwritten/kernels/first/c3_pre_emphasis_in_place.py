import torch


def reference(x):
    return x - 0.5 * torch.cat([torch.zeros_like(x[:1]), x[:-1]]) if len(x) else x
