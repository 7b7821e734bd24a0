import torch


def reference(x):
    return {"Y": (x * x).sum(-1), "S": None}  # S is a workspace
