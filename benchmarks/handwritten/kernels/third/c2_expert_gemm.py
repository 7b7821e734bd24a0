import torch


def reference(x, w, off):
    y = torch.empty(x.shape[0], w.shape[2], dtype=x.dtype)
    for e in range(w.shape[0]):
        lo, hi = int(off[e]), int(off[e + 1])
        y[lo:hi] = x[lo:hi] @ w[e]
    return y


def sizes(drawn):
    return {"E1": drawn["E"] + 1} if drawn["E"] > 0 else None


def inputs(sizes, generator):
    """Sorted cuts; rows belong to some expert, and some experts have none."""
    cuts = torch.randint(0, sizes["M"] + 1, (sizes["E"] - 1,), generator=generator).sort().values
    if len(cuts) > 2:
        cuts[1] = cuts[2]
    return {"off": torch.cat([torch.zeros(1, dtype=torch.long), cuts, torch.tensor([sizes["M"]])])}
