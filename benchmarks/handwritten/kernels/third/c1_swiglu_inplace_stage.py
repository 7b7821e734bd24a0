import torch


def reference(a, b):
    """silu(a) * b."""
    return {"Y": a * torch.sigmoid(a) * b}
