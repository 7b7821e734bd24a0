import torch


def sizes(drawn):
    return {"N": drawn["N"] + 2}


def reference(x):
    d = x - x.mean(-1, keepdim=True)
    return ((d * d).sum(-1) / (x.shape[1] - 1)).sqrt()
