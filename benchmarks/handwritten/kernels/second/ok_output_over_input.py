import torch


def reference(x):
    return x @ x.mT * 0.125
