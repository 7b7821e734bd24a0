import torch


def reference(a, b, eps):
    """a . b / (max(|a|, eps) max(|b|, eps)) of each row, as torch.nn.functional.cosine_similarity."""
    return {"S": (a * b).sum(-1) / (a.norm(dim=-1).clamp(min=eps) * b.norm(dim=-1).clamp(min=eps))}


def inputs(sizes, generator):
    return {"eps": 1e-6}
