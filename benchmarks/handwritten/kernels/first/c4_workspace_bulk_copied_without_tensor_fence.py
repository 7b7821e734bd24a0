import torch


def reference(x, w):
    n = w * torch.rsqrt((w * w).sum(-1, keepdim=True) + 0.0001)
    return {"Y": x @ n.mT}
