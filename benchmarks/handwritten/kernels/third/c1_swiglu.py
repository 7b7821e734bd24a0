import torch


def reference(a, w1, w3):
    return {"C": torch.nn.functional.silu(a @ w1.mT) * (a @ w3.mT)}
