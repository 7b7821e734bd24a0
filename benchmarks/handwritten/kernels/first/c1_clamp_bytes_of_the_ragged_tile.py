import torch


def reference(x):
    return x.clamp(-1, 1)
