import torch


def reference(a, bt, scale, bias):
    """C = sigmoid(scale * A Bt^T + bias)."""
    return {"C": torch.sigmoid((a @ bt.mT) * scale + bias)}
