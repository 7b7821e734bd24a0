import torch


def reference(x):
    return (x * x).sum(-1)


def sizes(drawn):
    return {"N": max(1, drawn["N"])}
