import torch


def sizes(drawn):
    return {"M": drawn["M"] * 9}


def reference(x):
    e = torch.nn.functional.pad((x * x).sum(-1), (0, -len(x) % 16)).view(-1, 16).sum(-1)
    return torch.nn.functional.pad(e, (0, -len(e) % 128)).view(-1, 128).sum(0)
