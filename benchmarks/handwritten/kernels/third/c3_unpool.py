import torch


def reference(dx, dy, idx, rate):
    return {"dX": dx.scatter_add(1, idx.long(), (dy * rate).to(dx.dtype))}


def sizes(drawn):
    return {"MI": 2 * drawn["MO"] + 1}


def inputs(sizes, generator):
    B, MO, C = (sizes[n] for n in ("B", "MO", "C"))
    return {"IDX": 2 * torch.arange(MO)[:, None] + torch.randint(3, (B, MO, C), generator=generator)}
