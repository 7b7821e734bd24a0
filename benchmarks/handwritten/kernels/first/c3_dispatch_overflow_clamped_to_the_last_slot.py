import torch


def sizes(drawn):
    return {"CAP": max(1, drawn["M"] * 2 // 3), "M": max(1, drawn["M"])}


def inputs(sizes, generator):
    return {"pos": torch.randperm(sizes["M"], generator=generator).to(torch.int32)}


def reference(x, pos, CAP):
    y = torch.full((CAP, x.shape[1]), torch.nan, dtype=x.dtype)
    here = pos < CAP
    y[pos[here].long()] = x[here]
    return y
