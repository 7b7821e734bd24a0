import torch


def reference(x):
    y = x.new_zeros(-(-max(1, x.shape[0]) // 64) * 64, x.shape[1])
    y[: x.shape[0]] = x
    return y.view(-1, 64, x.shape[1]).sum(0)
