def reference(x, a, r, scale):
    return {"Y": r + (scale[:, None, None] * (x @ a.mT)).sum(0)}


def sizes(drawn):
    return {"P": -(-drawn["P"] // 4) * 4}
