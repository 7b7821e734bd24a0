import torch


def sizes(drawn):
    return {"B1": drawn["B"] + 1}


def inputs(sizes, generator):
    cuts = torch.randint(0, sizes["M"] + 1, (sizes["B"] + 1,), generator=generator).sort().values
    cuts[0], cuts[-1] = 0, sizes["M"]
    if sizes["B"] > 2:
        cuts[2] = cuts[1]
    return {"off": cuts.to(torch.int32)}


def reference(x, off):
    parts = [x[a:b].mT @ x[a:b] for a, b in zip(off.tolist(), off.tolist()[1:])]
    return torch.stack(parts) if parts else x.new_zeros(0, x.shape[1], x.shape[1])
