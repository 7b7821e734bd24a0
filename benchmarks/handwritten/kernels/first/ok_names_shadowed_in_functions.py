import torch


def poly(x, t):
    acc = x
    for _ in range(3):
        acc = acc * x + t
        t = t * 0.5
    return acc


def reference(x):
    x = x.tanh()
    t = poly(x, 0.25)
    i = poly(t, 0.125)
    return i - t + i
