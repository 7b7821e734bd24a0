import torch


def reference(x, idx, w, rate):
    """W[idx[b, n]] += rate * x[b, n]."""
    return {"W": w.index_add(0, idx.long().flatten(), rate * x.flatten(0, 1).to(w.dtype))}


def sizes(drawn):
    return {"V": max(drawn["V"], drawn["N"], 1)}


def inputs(sizes, generator):
    rows = [torch.randperm(sizes["V"], generator=generator)[: sizes["N"]] for _ in range(sizes["B"])]
    return {"idx": torch.stack(rows).int() if rows else torch.zeros(0, sizes["N"], dtype=torch.int32)}
