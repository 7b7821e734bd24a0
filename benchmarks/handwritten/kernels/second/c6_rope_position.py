import torch


def reference(q, cs, sn):
    a, b = q.chunk(2, -1)
    return torch.cat((a * cs - b * sn, b * cs + a * sn), -1)
