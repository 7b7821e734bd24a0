import torch


def reference(x, target):
    """Cross entropy of each row."""
    return x.logsumexp(-1) - x.gather(1, target.long()[:, None])[:, 0]


def sizes(drawn):
    return {"V": max(drawn["V"], 1)}


def inputs(sizes, generator):
    return {"target": torch.randint(0, sizes["V"], (sizes["M"],), generator=generator).int()}
