import torch


def reference(w, g, m1, v, rate, decay, c1, c2):
    """One step of AdamW (Loshchilov and Hutter), betas 0.9 and 0.999, eps 1e-8."""
    m1 = 0.9 * m1 + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    step = (m1 / c1) / ((v / c2).sqrt() + 1e-8)
    return {"W": w - rate * (step + decay * w), "M1": m1, "V": v}


def inputs(sizes, generator, m1, v):
    """Half of the time the first step, before which the moments are 0."""
    n = max(int(torch.randint(-1000, 1000, (1,), generator=generator)), 1)
    m1, v = (0 * m1, 0 * v) if n == 1 else (m1, 1e-3 * v * v)
    return {"M1": m1, "V": v, "rate": 1e-2, "decay": 0.01, "c1": 1 - 0.9**n, "c2": 1 - 0.999**n}
