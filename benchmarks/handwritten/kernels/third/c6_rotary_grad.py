import torch


def reference(dkr, dvh, cos, sin, HK):
    """Query head h belongs to key head h // (H // HK), as everywhere (repeat_interleave)."""
    B, H, M, D = dkr.shape
    k, v = (t.view(B, HK, H // HK, M, D).sum(2) for t in (dkr, dvh))
    x, y = k.chunk(2, -1)
    return {"dK": torch.cat([x * cos + y * sin, y * cos - x * sin], -1), "dV": v}
