import torch


def reference(x, gamma, beta):
    d = x - x.mean(-1, keepdim=True)
    return d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 0.00001) * gamma.to(x.dtype) + beta.to(x.dtype)
