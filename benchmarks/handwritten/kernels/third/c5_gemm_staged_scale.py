import torch


def reference(a, bt, r, alpha):
    return alpha * (a @ bt.mT) + r
