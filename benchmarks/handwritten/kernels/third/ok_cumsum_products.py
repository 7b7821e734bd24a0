import torch


def reference(x):
    """Cumulative sums along the sequence, and the sums."""
    return {"Y": x.cumsum(1), "TOTAL": x.sum(1)}
