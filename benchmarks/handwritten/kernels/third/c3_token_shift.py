import torch


def reference(x, prev, mu, doc):
    """Token shift along the sequence, within documents, and the last token before it."""
    new = torch.zeros_like(doc, dtype=torch.bool)
    new[:, 1:] = doc[:, 1:] != doc[:, :-1]
    before = torch.cat([prev[:, None], x], 1)[:, :-1].masked_fill(new[..., None], 0.0)
    return {"X": x + mu * (before - x), "LAST": x[:, -1]}


def sizes(drawn):
    return {"S": max(drawn["S"], 1)}


def inputs(sizes, generator):
    doc = (torch.rand(sizes["B"], sizes["S"], generator=generator) < 0.03).cumsum(1)
    return {"mu": torch.rand(sizes["C"], generator=generator), "doc": doc.int()}
