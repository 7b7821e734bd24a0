import torch


def mean(x):
    z = torch.zeros_like(x[:1])
    return (torch.cat([z, x[:-1]]) + torch.cat([x[1:], z])) / 2 if len(x) else x


def reference(a):
    return {"C": mean(mean(a))}
