import torch


def sizes(drawn):
    return {"B1": drawn["B"] + 1, "B": max(1, drawn["B"]), "B1": max(1, drawn["B"]) + 1}


def inputs(sizes, generator):
    cuts = torch.randint(0, sizes["M"] + 1, (sizes["B"] + 1,), generator=generator).sort().values
    cuts[0], cuts[-1] = 0, sizes["M"]
    return {"off": cuts.to(torch.int32)}


def reference(x, off, f):
    n = torch.diff(off.long())
    return x * f.to(x.dtype).repeat_interleave(n)[:, None]
