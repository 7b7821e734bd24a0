import torch


def inputs(sizes, generator):
    return {"Q": torch.randint(-30000, 30001, (sizes["S"], sizes["M"], 32), generator=generator, dtype=torch.int32)}


def reference(q):
    return q.double().square().sum(0)
