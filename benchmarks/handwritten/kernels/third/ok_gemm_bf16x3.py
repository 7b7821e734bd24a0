import torch


def reference(a, bt):
    return a @ bt.mT
