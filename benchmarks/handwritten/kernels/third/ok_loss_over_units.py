import torch


def reference(x, label):
    lse = x.logsumexp(-1)
    own = x.gather(1, label.long()[:, None])[:, 0]
    return {"LSE": lse, "LOSS": (lse - 0.875 * own - 0.125 * x.mean(-1)).mean()[None]}


def sizes(drawn):
    return {"N": max(1, drawn["N"]), "M": max(1, drawn["M"])}


def inputs(sizes, generator):
    return {"label": torch.randint(0, sizes["N"], (sizes["M"],), generator=generator)}
