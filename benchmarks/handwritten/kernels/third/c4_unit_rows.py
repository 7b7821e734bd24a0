def reference(x, eps):
    norm2 = x.square().sum(-1)
    return {"Y": x * norm2.clamp(min=eps * eps).rsqrt()[:, None], "L2": norm2}
