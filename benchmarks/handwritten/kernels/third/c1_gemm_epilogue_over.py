import torch


def reference(a, bt, r):
    return (a @ bt.mT + r).clamp(min=0)
