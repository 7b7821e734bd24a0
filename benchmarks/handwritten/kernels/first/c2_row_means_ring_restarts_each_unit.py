import torch


def sizes(drawn):
    return {"N": max(1, drawn["N"])}


def reference(x):
    return x.mean(-1)
