import torch


def sizes(drawn):
    return {"NB": -(-drawn["N"] // 64)}


def reference(x):
    M, N = x.shape
    x = torch.nn.functional.pad(x, (0, -N % 64))
    return x.reshape(M, (N + 63) // 64, 64).sum(-1).cumsum(-1)
