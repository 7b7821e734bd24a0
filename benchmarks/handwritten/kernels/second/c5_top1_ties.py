import torch


def reference(x):
    at = torch.arange(x.shape[1]).expand(x.shape)
    return torch.where(x == x.amax(-1, keepdim=True), at, x.shape[1]).amin(-1)


def sizes(drawn):
    return {"N": max(1, drawn["N"])}
