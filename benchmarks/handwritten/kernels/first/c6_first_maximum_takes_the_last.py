import torch


def sizes(drawn):
    return {"N": max(1, drawn["N"])}


def inputs(sizes, generator, x):
    return {"X": (x * 2).round() / 2}


def reference(x):
    c = torch.arange(x.shape[1]).expand(x.shape)
    return c.masked_fill(x != x.amax(-1, keepdim=True), x.shape[1]).amin(-1)
