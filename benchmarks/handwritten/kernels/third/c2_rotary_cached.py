import torch


def reference(x, cos, sin, pos):
    M = x.shape[1]
    p = pos.long()[:, None] + torch.arange(M)
    c, s = cos[p][:, :, None], sin[p][:, :, None]
    n = 2 * cos.shape[1]
    even, odd = x[..., :n:2], x[..., 1:n:2]
    turned = torch.stack([even * c - odd * s, odd * c + even * s], -1).flatten(-2)
    return {"Y": torch.cat([turned, x[..., n:]], -1)}


def sizes(drawn):
    return {"L": drawn["M"] + 9}


def inputs(sizes, generator):
    return {"pos": torch.randint(10, (sizes["B"],), generator=generator)}
