import torch


def sizes(drawn):
    return {"M": max(1, drawn["M"]), "M1": max(1, drawn["M"]) + 1}


def reference(x):
    return torch.cat([x[:, 0] * 2, x.new_full((1,), -1.0)])
