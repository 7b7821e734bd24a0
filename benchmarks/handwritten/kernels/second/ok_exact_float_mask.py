import torch


def reference(x, ends):
    at = torch.arange(x.shape[1])
    return (x * ((at < ends[:, None]) | (at == 0))).sum(-1)


def inputs(sizes, generator):
    return {"ends": torch.randint(0, sizes["N"] + 2, (sizes["M"],), generator=generator).float()}
