import torch


def reference(x, tau):
    """Log-softmax of x / tau over the columns."""
    return {"Y": (x / tau).log_softmax(-1)}
