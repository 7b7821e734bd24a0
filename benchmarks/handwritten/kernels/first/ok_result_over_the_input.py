import torch


def reference(x):
    return x[:, :64] + x[:, 64:]
