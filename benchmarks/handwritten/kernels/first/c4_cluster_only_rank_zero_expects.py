import torch


def reference(x, f):
    return x * f
