import torch


def reference(x):
    return x * (torch.arange(x.shape[0]) % 7).to(x.dtype)[:, None]
