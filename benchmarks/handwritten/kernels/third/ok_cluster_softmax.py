def reference(x, temp):
    return {"Y": (x * temp).log_softmax(-1), "S": None}
