import torch


def inputs(sizes, generator, x):
    return {"X": x.masked_fill((torch.arange(len(x)) % 5 == 2)[:, None], 0.0)}


def reference(x):
    top = x.abs().amax(-1)
    return x / torch.where(top == 0, 1.0, top)[:, None], top
