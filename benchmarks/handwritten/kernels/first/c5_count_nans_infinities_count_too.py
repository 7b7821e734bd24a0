import torch


def inputs(sizes, generator, x):
    what = torch.randint(0, 12, x.shape, generator=generator)
    return {"X": x.masked_fill(what == 0, torch.nan).masked_fill(what == 1, torch.inf).masked_fill(what == 2, -torch.inf)}


def reference(x):
    return x.isnan().to(x.dtype).sum(-1)
