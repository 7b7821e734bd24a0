import torch


def reference(x):
    """8 bits with a scale of 1/8 and a zero point of 128; halves to even."""
    return (torch.round(x * 8.0) + 128).clamp(0, 255).to(torch.int32)
