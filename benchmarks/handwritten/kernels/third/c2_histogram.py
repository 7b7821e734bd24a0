import torch


def reference(x, width, NB):
    """Counts of the codes of each image, in NB bins of `width` codes; others are dropped."""
    bins = torch.div(x.long(), int(width), rounding_mode="floor").flatten(1)
    ok = (bins >= 0) & (bins < NB)
    out = torch.zeros(x.shape[0], NB + 1, dtype=torch.int64)
    out.scatter_add_(1, torch.where(ok, bins, NB), torch.ones_like(bins))
    return {"H": out[:, :NB].int(), "kept": out[:, :NB].sum(1).int()}


def inputs(sizes, generator):
    width = int(torch.randint(1, 9, (1,), generator=generator))
    shape = sizes["B"], sizes["R"], 64
    return {"X": torch.randint(-4, width * sizes["NB"] + 9, shape, generator=generator).int(), "width": width}
