import torch


def reference(x, taps):
    x0, x2 = torch.zeros_like(x), torch.zeros_like(x)
    x0[:, 1:], x2[:, :-1] = x[:, :-1], x[:, 1:]
    return x0 * taps[0] + x * taps[1] + x2 * taps[2]
