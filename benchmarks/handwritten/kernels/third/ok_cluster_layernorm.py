import torch


def reference(x, gamma, beta, eps):
    """Layer norm; P is scratch."""
    y = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps)
    return {"Y": y * gamma + beta, "P": None}


def sizes(drawn):
    return {"U": (drawn["M"] + 63) // 64}
