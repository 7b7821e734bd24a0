import torch


def reference(x):
    """Largest element of each row, the first place where it stands, and the second largest (equal if it stands twice)."""
    best = x.amax(-1)
    at = (x == best[:, None]).to(torch.int32).argmax(-1)
    second = x.sort(-1, descending=True).values[:, 1]
    return {"BEST": best, "AT": at.int(), "SECOND": second}


def sizes(drawn):
    return {"N": max(drawn["N"], 2)}
