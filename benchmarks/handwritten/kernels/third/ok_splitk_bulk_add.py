import torch


def reference(a, bt, c, alpha):
    return {"C": c + alpha * (a @ bt.mT)}
