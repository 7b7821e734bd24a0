import torch


def reference(x):
    y = x.clone()
    y[:, 1:] = torch.maximum(y[:, 1:], x[:, :-1])
    y[:, :-1] = torch.maximum(y[:, :-1], x[:, 1:])
    return y
