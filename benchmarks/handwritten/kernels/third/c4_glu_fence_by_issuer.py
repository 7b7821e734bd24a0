import torch


def reference(x):
    return x[:, 0] * torch.sigmoid(x[:, 1])
