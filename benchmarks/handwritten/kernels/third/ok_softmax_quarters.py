def reference(x):
    return {"Y": x.softmax(-1)}
