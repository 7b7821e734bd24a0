import torch


def reference(x):
    return {"Y": x.cumsum(-1) - x, "total": x.sum(-1)}
