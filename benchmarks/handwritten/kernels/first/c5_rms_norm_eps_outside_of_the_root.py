import torch


def inputs(sizes, generator):
    return {"eps": 0.001}


def reference(x, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
