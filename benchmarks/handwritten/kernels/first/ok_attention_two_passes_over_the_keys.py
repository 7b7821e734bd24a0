import torch


def sizes(drawn):
    return {"N": max(1, drawn["N"])}


def reference(q, k, v, scale):
    g = q.shape[1] // k.shape[1]
    return (q @ k.repeat_interleave(g, 1).mT * scale).softmax(-1) @ v.repeat_interleave(g, 1)
