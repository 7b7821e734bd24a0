import torch


def reference(x, r, bias):
    """r + relu(x + bias)."""
    return {"Y": r + torch.relu(x + bias)}
