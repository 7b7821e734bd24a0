import torch


def reference(x):
    return x.amax(-1)
