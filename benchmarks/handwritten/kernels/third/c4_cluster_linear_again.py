import torch


def reference(a, w, bias):
    return {"C": torch.nn.functional.softplus(a @ w.mT + bias)}
