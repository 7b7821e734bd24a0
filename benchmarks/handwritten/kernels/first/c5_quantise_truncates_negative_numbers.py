import torch


def reference(x):
    return torch.floor((x * 8 + 0.5).clamp(-126.5, 127.0))
