import torch


def reference(dy, y):
    """dX = dY where Y > 0, and its sum over the rows."""
    dx = torch.where(y > 0, dy, 0.0)
    return {"dX": dx, "db": dx.sum(0)}
