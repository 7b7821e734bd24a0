import torch


def reference(x):
    return x * 0.5
