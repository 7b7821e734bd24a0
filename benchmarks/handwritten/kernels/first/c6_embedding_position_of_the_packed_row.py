import torch


def sizes(drawn):
    return {"V": max(1, drawn["V"])}


def inputs(sizes, generator):
    return {"token": torch.randint(0, sizes["V"], (sizes["B"], sizes["S"]), generator=generator, dtype=torch.int32)}


def reference(token, w, p):
    return w[token.long()] + p
