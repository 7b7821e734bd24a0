import torch


def reference(p, g, e, u, rate):
    e = 0.9 * e + 0.1 * g
    u = 0.95 * u.abs() + 0.05 * g * g
    p = p - rate * e / (u.sqrt() + 0.01)
    return {"W": p}
