import torch


def reference(a, bt):
    return (a * 0.0078125) @ bt.mT
