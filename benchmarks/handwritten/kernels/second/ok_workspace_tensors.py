import torch


def reference(x, eps):
    return {"Y": x / ((x * x).mean(-1, keepdim=True) + eps).sqrt(), "W": None}  # W is a workspace
