import torch


def inputs(sizes, generator):
    return {"stride": 1000000007}


def reference(x, stride):
    return x[torch.arange(len(x)) * stride % max(1, len(x))]
