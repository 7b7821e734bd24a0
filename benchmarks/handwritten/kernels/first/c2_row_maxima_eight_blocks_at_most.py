import torch


def sizes(drawn):
    return {"N": max(1, drawn["N"] * 5)}


def reference(x):
    return x.abs().amax(-1)
