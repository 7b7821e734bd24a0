import torch


def reference(x):
    return {"Z": (x * x).sum(-1)}
