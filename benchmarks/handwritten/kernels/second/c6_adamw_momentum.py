import torch


def reference(p, g, mo, vo, lr):
    m = 0.9 * mo + 0.1 * g
    v = 0.99 * vo + 0.01 * g * g
    return {"P": p * (1.0 - 0.01 * lr) - lr * m / (v.sqrt() + 0.001), "Mo": m, "Vo": v}


def inputs(sizes, generator, vo):
    return {"Vo": vo.abs()}
