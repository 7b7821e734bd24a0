import torch


def reference(x):
    return x / (1.0 + x.abs())
