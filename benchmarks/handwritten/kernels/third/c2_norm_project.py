def reference(x, w, eps):
    return {"Y": (x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()).to(w.dtype) @ w.mT}
