import torch


def reference(x):
    h, all = torch.zeros_like(x[0]) if len(x) else None, []
    for row in x:
        h = 0.99 * h + 0.01 * row
        all.append(h)
    return torch.stack(all) if all else x
