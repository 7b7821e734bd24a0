import torch


def reference(x):
    return {"Y": torch.nn.functional.gelu(x[:, 0], approximate="tanh") * x[:, 1]}


def sizes(drawn):
    return {"N": -(-drawn["N"] // 8) * 8}
