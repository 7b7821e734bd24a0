def reference(x, cap):
    return {"Y": (cap * (x / cap).tanh()).softmax(-1)}


def sizes(drawn):
    return {"N": -(-drawn["N"] // 8) * 8}
