import torch


def reference(z, bias, a):
    dt = torch.nn.functional.softplus(z + bias)
    return {"DT": dt, "DECAY": (-dt * a.abs()).exp()}


def sizes(drawn):
    return {"C": -(-drawn["C"] // 8) * 8}
