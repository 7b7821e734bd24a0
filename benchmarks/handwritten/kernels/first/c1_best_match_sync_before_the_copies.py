import torch


def sizes(drawn):
    return {"N": max(1, drawn["N"])}


def reference(q, k):
    return (q @ k.mT).amax(-1)
