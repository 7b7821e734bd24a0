import torch


def reference(x):
    e = (x * x).sum(-1)
    return {"Y": x / (1 + e[:, None])}
