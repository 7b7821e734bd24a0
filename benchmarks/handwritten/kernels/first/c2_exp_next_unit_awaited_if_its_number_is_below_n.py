import torch


def reference(x):
    return torch.exp2(x.clamp(max=15.0))
