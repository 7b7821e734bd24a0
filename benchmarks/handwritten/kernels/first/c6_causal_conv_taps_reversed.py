import torch


def reference(x, w):
    M = x.shape[1]
    p = torch.nn.functional.pad(x, (0, 0, 3, 0))
    return sum(w[i].to(x.dtype) * p[:, 3 - i : 3 - i + M] for i in range(4))
