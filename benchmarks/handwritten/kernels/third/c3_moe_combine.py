import torch


def reference(e, slot, gate, z, total):
    """z and the sum over the choices of gate * the expert's output, gates scaled to `total`; dropped choices (slot < 0) give nothing."""
    rows = e[slot.long().clamp(min=0)]
    gate = gate * (total / gate.sum(1, keepdim=True))
    return {"Y": z + (rows * (gate * (slot >= 0))[..., None]).sum(1)}


def sizes(drawn):
    return {"TOP": max(drawn["TOP"], 1), "NS": drawn["N"] * max(drawn["TOP"], 1) + 3}


def inputs(sizes, generator):
    N, K = sizes["N"], sizes["TOP"]
    slot = torch.randperm(sizes["NS"], generator=generator)[: N * K].view(N, K)
    drop = torch.rand(N, K, generator=generator) < 0.1
    return {"slot": torch.where(drop, -1, slot).int(), "gate": 0.1 + torch.rand(N, K, generator=generator)}
