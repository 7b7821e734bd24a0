import torch


def wrap(x):
    return (x + 2**31) % 2**32 - 2**31


def reference(x):
    h = wrap(x.long() + 2147483647)
    h = wrap((h ^ (h // 65536)) * 73244475)
    h = wrap(wrap((h ^ (h // 65536 & 65535)) * 1540483477) + 12345)
    return h, h % 1009


def inputs(sizes, generator):
    return {"X": torch.randint(-(2**31), 2**31 - 1, (sizes["M"], sizes["N"]), generator=generator)}
