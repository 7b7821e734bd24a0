import torch


def reference(a, bt, sa, sb):
    return (a @ bt.mT) * sa[:, None] * sb
