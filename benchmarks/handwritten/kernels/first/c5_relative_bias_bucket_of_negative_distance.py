import torch


def reference(x, bias):
    d = torch.arange(x.shape[1])[None] - torch.arange(x.shape[0])[:, None]
    return x + bias.to(x.dtype)[torch.div(d, 8, rounding_mode="trunc").clamp(-15, 15) + 15]
