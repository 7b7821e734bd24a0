import torch


def reference(x):
    z = torch.zeros_like(x[:1])
    return (torch.cat([z, x[:-1]]) + x + torch.cat([x[1:], z])) / 3 if len(x) else x
