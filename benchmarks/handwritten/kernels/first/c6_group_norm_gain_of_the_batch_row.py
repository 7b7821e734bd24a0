import torch


def sizes(drawn):
    return {"R": 4 * (drawn["R"] // 4 + 1), "L": 16 * (drawn["L"] // 16 + 1), "C": 64}


def reference(x, gain):
    d = x - x.mean(-1, keepdim=True)
    y = d * torch.rsqrt((d * d).mean(-1, keepdim=True) + 0.00001)
    g = gain.to(x.dtype).view(4, 16).repeat(len(x) // 4, 1)
    return (y.view(len(x), 16, -1) * g[:, :, None]).reshape(x.shape)
