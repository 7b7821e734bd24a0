import torch


def reference(x, gamma, eps):
    """RMS norm over the last dim, a weight per head."""
    return {"Y": x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * gamma[:, None]}
