import torch


def sizes(drawn):
    return {"M": max(1, drawn["M"])}


def reference(x):
    return {"total": (x * x).sum()[None]}
