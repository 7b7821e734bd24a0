import torch


def sizes(drawn):
    return {"M": drawn["M"] + 64}


def reference(w, g, rate):
    return w - rate * g
