import torch


def reference(x):
    y, rows = torch.zeros_like(x[:, 0]) if x.shape[1] else None, []
    for l in range(x.shape[1]):
        y = 0.984375 * y + (1 - 0.984375) * x[:, l]
        rows.append(y)
    return torch.stack(rows, 1) if rows else x
