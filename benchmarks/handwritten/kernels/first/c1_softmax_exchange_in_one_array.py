import torch


def reference(x):
    return x.softmax(-1)
