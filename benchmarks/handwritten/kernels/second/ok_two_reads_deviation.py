import torch


def reference(x):
    c = x - x.mean(-1, keepdim=True)
    return ((c * c).sum(-1) / (x.shape[1] - 1)).sqrt()


def sizes(drawn):
    return {"N": max(2, drawn["N"])}
