import torch


def reference(x):
    return (x + 1) * 2
