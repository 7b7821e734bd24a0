import torch


def reference(x):
    return x.mean(-1)
