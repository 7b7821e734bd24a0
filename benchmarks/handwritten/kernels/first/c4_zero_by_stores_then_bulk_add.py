import torch


def reference(x):
    return x.sum(1)
