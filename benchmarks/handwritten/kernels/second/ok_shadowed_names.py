import torch


def reference(x):
    m = x.shape[0]
    return x * 0.5, torch.tensor([min(64, m - i // 64 * 64) for i in range(m)], dtype=torch.int64)
