import torch


def reference(x, bias):
    return {"X": torch.relu(x + bias)}
