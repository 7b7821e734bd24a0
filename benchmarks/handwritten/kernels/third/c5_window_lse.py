import torch


def reference(x, start, end, rate):
    """LSE over each row's window and the mean position under its softmax."""
    c = torch.arange(x.shape[1])
    keep = (c >= start[:, None]) & (c < end[:, None])
    s = (x * rate).masked_fill(~keep, -torch.inf)
    p = s.softmax(-1)
    return {"LSE": s.logsumexp(-1), "POS": (p * c.to(x.dtype)).masked_fill(~keep, 0.0).sum(-1)}


def inputs(sizes, generator):
    start = torch.randint(0, max(sizes["N"], 1), (sizes["M"],), generator=generator)
    length = torch.randint(0, max(sizes["N"], 1) + 1, (sizes["M"],), generator=generator)
    return {"start": start.int(), "end": (start + length).clamp(max=sizes["N"]).int()}
