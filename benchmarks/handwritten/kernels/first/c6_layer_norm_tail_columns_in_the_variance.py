import torch


def sizes(drawn):
    return {"N": max(1, min(drawn["N"], 256))}


def reference(x):
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 0.001)
