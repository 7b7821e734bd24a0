import torch


def sizes(drawn):
    return {"NG": -(-drawn["N"] // 32)}


def inputs(sizes, generator):
    M, N, NG = sizes["M"], sizes["N"], sizes["NG"]
    return {"Q": torch.randint(0, 256, (M, N), generator=generator, dtype=torch.int32), "zero": torch.randint(100, 150, (M, NG), generator=generator, dtype=torch.int32)}


def reference(q, scale, zero):
    g = torch.arange(q.shape[1]) // 32
    return (q - zero[:, g]) * scale[:, g]
