import torch


def reference(x):
    return (x * x).sum(-1).sqrt()
