import torch


def reference(x):
    return x.sum(0), (x * x).sum(0)
