import torch


def reference(x):
    return torch.tanh(x)
