import torch


def reference(g, limit):
    """Norm and largest element of G, and the factor that brings the norm to `limit`; P, A and done are scratch."""
    norm = g.pow(2).sum().sqrt().reshape(1)
    return {"NORM": norm, "COEF": (limit / (norm + 1e-6)).clamp(max=1.0), "TOP": g.abs().max().reshape(1), "P": None, "A": None, "done": None}


def sizes(drawn):
    return {"M": max(drawn["M"], 1), "N": max(drawn["N"], 1), "NP": (max(drawn["M"], 1) + 31) // 32}


def inputs(sizes, generator):
    return {"limit": 0.1 + 3 * float(torch.rand(1, generator=generator)), "done": torch.zeros(1, dtype=torch.int32)}
