import torch


def reference(x):
    return {"Y": (x * x).sum(-1)}
