import torch


def shifted(x, first, mu):
    return mu * x + (1 - mu) * torch.cat([first[:, None], x[:, :-1]], 1)


def reference(k, r, pk, pr, mk, mr):
    return {"K": shifted(k, pk, mk), "R": shifted(r, pr, mr)}
