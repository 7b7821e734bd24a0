import torch


def reference(x, p, factor):
    """factor x + p, positions shared by all sequences."""
    return {"Y": factor * x + p}
