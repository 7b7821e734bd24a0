import torch


def reference(a, x, LOW):
    M, NB = a.shape
    y = torch.zeros_like(x)
    for d in range(NB):
        shift = d - LOW                                     # row q takes X[q + shift]
        lo, hi = max(0, -shift), min(M, M - shift)
        if lo < hi:
            part = torch.zeros_like(x)
            part[lo:hi] = a[lo:hi, d : d + 1] * x[lo + shift : hi + shift]
            y = y + part
    return {"Y": y}


def sizes(drawn):
    return {"NB": drawn["LOW"] + 1 + drawn["NB"] % 90, "P": -(-drawn["P"] // 8) * 8}
