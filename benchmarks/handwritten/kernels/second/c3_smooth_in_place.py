import torch


def reference(x, a):
    above = torch.zeros_like(x)
    above[1:] = x[:-1]
    return {"X": x + a * (above - x)}
