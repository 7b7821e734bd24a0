import torch


def reference(x, wt):
    return torch.tanh(x @ wt.mT)
