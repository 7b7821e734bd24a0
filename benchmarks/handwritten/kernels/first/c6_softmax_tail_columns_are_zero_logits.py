import torch


def sizes(drawn):
    return {"N": max(1, min(drawn["N"], 128))}


def reference(x):
    return x.softmax(-1)
