import torch


def reference(x, r, gamma, eps):
    s = x + r
    return {"S": s, "Y": s * torch.rsqrt((s * s).mean(-1, keepdim=True) + eps) * gamma}
