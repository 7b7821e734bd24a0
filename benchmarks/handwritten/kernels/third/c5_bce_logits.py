import torch


def reference(x, y, pos):
    """Mean over each row of binary cross entropy with logits, and the gradient of that mean."""
    softplus = torch.nn.functional.softplus(-x)
    weight = 1 + (pos - 1) * y
    return {"L": ((1 - y) * x + weight * softplus).mean(-1), "G": ((1 - y) - weight * torch.sigmoid(-x)) / x.shape[1]}


def sizes(drawn):
    return {"N": max(drawn["N"], 1)}


def inputs(sizes, generator):
    return {"Y": (torch.rand(sizes["M"], sizes["N"], generator=generator) < 0.3).float(), "pos": 0.5 + 2 * torch.rand(sizes["N"], generator=generator)}
