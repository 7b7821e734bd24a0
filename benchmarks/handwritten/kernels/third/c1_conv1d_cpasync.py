import torch


def reference(x, w, bias, TAPS, PAD):
    """relu(conv1d + bias), channels last."""
    B, L, CI = x.shape
    xp = torch.nn.functional.pad(x, (0, 0, PAD, TAPS - 1 - PAD))
    y = sum(xp[:, tap : tap + L] @ w[tap] for tap in range(TAPS)) + bias
    return y.clamp(min=0)
