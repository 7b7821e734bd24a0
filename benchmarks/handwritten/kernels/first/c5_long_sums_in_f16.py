import torch


def reference(x):
    return x.abs().sum(-1)
