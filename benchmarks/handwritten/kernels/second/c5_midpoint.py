import torch


def reference(low, high):
    return torch.div(low.long() + high.long(), 2, rounding_mode="floor")


def inputs(sizes, generator):
    shape = sizes["M"], sizes["N"]
    low = torch.randint(-(2**31), 2**31 - 1, shape, generator=generator)
    high = torch.randint(-(2**31), 2**31 - 1, shape, generator=generator)
    return {"low": torch.minimum(low, high), "high": torch.maximum(low, high)}
