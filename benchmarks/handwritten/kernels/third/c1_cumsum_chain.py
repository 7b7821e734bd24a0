import torch


def reference(x):
    return {"Y": x.cumsum(-1), "total": x.sum(-1)}


def sizes(drawn):
    return {"N": max(1, drawn["N"])}
