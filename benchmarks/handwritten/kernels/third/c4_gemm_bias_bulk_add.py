import torch


def reference(a, bt, bias):
    return a @ bt.mT + bias
