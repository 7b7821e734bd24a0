import torch


def reference(kv, sc, page, length, L):
    """Dense rows of paged sequences, scaled; 0 behind the end; and the largest magnitude of each row."""
    x = (kv * sc[..., None])[page.long()].flatten(1, 2)[:, :L]
    x = torch.where(torch.arange(L)[None, :, None] < length[:, None, None], x, 0.0)
    return {"O": x, "TOP": x.abs().amax(-1)}


def sizes(drawn):
    MP = drawn["MP"] + 2
    return {"MP": MP, "L": 16 * MP, "NP": drawn["B"] * MP + 2}


def inputs(sizes, generator):
    B, MP = sizes["B"], sizes["MP"]
    length = torch.randint(0, 16 * MP + 1, (B,), generator=generator)
    return {"page": torch.randperm(sizes["NP"], generator=generator)[: B * MP].view(B, MP).int(), "length": length.int()}
