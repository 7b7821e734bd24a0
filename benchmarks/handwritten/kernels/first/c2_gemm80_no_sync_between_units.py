import torch


def reference(a, bt):
    return torch.relu(a @ bt.mT)
