import torch


def sizes(drawn):
    return {"V": max(1, drawn["V"])}


def inputs(sizes, generator):
    return {"idx": torch.randint(0, sizes["V"], (sizes["M"],), generator=generator, dtype=torch.int32)}


def reference(dy, idx, V):
    return torch.zeros(V, dy.shape[1], dtype=dy.dtype).index_add(0, idx.long(), dy)
